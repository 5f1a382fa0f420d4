// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// readMachine reads the Machine of an owner reference from the API server, nil if it was
// deleted. A Machine that is only missing in the cache must not cause the deletion of its
// NstanceMachine.
func (c *Controller) readMachine(ctx context.Context, ref *metav1.OwnerReference) (*clusterv1.Machine, error) {
	machine, err := c.machines.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && machine.UID != ref.UID {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Machine %s: %w", c.key(ref.Name), err)
	}
	return machine, nil
}

// readMachinePool reads a MachinePool from the API server, nil if it does not exist. The cache
// may have other replicas than the pool has acted on.
func (c *Controller) readMachinePool(ctx context.Context, name string) (*clusterv1.MachinePool, error) {
	machinePool, err := c.machinePools.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read MachinePool %s: %w", c.key(name), err)
	}
	return machinePool, nil
}

// queryInstance queries the shard for the instance. If the shard does not have it, the
// instance is lost, and its Machine is deleted.
func (c *Controller) queryInstance(ctx context.Context, observed observation, state *syncState) outcome {
	instance, err := c.shardClient.GetInstance(ctx, observed.shardID, observed.instanceID)
	if err != nil && !shard.IsNotFound(err) {
		done := outcome{err: err}
		if !ready(observed.nstanceMachine) {
			done.problem = problemOf(err, v1beta1.ReasonProvisioning)
		}
		return done
	}
	state.verifiedSession = observed.session
	if err != nil {
		return outcome{lost: true}
	}
	if usable(&instance) && !observed.missing {
		state.queries = retry{Backoff: queryBackoff}
		return outcome{instance: &instance}
	}
	return outcome{instance: &instance, wait: state.queries.schedule(observed.now)}
}
