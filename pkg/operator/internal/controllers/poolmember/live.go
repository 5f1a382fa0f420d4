// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A sync reads caches. Before it deletes an object because a related object is missing, it
// reads the related object from the API server, because the cache may not have it yet.

// hasMachine reports whether an NstanceMachine has a Machine on the API server.
func (c *Controller) hasMachine(ctx context.Context, nstanceMachine *v1beta1.NstanceMachine) (bool, error) {
	_, err := c.machines.Get(ctx, nstanceMachine.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the Machine of NstanceMachine %s: %w", klog.KObj(nstanceMachine), err)
	}
	return true, nil
}

// hasNstanceMachine reports whether a Machine has an NstanceMachine on the API server.
func (c *Controller) hasNstanceMachine(ctx context.Context, machine *clusterv1.Machine) (bool, error) {
	_, err := c.nstanceMachines.Get(ctx, machine.Spec.InfrastructureRef.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the NstanceMachine of Machine %s: %w", klog.KObj(machine), err)
	}
	return true, nil
}
