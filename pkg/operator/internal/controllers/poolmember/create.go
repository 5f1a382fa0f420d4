// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// reasonNameTaken: an NstanceMachine outside the pool has the name of an instance.
const reasonNameTaken = "NameTaken"

// create creates NstanceMachines, and records an event about instances whose names are in use.
func (c *Controller) create(ctx context.Context, observed observation, d decision) error {
	created, conflicts := 0, d.conflicts
	err := each(ctx, d.create, func(wanted instance) error {
		conflict, err := c.createNstanceMachine(ctx, newNstanceMachine(observed.pool, observed.machinePools[0], wanted))
		switch {
		case err != nil:
			return err
		case conflict:
			conflicts = append(conflicts, wanted.id)
		default:
			created++
			c.states.addInstance(observed.pool.UID, wanted.id, wanted.shard)
		}
		return nil
	})
	if created > 0 {
		klog.FromContext(ctx).Info("Created NstanceMachines for instances of the pool", "count", created)
	}
	if added := c.states.setConflicts(observed.pool.UID, conflicts); len(added) > 0 {
		controller.Warn(c.recorder, observed.pool, reasonNameTaken, "CreateNstanceMachine", fmt.Sprintf(
			"instances get no NstanceMachine, because there is one of their name that is not of this pool: %s", strings.Join(added, ", ")))
	}
	return err
}

// createNstanceMachine creates an NstanceMachine. It reports whether an NstanceMachine outside
// the pool has the name. If a member of the pool has it, a request without a response or a
// former leader created it.
func (c *Controller) createNstanceMachine(ctx context.Context, nstanceMachine *v1beta1.NstanceMachine) (conflict bool, err error) {
	created, err := c.nstanceMachines.Create(ctx, nstanceMachine, metav1.CreateOptions{FieldManager: controllers.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		created, err = c.nstanceMachines.Get(ctx, nstanceMachine.Name, metav1.GetOptions{})
	}
	if err != nil {
		return false, fmt.Errorf("create NstanceMachine %s: %w", klog.KObj(nstanceMachine), err)
	}
	if owner := controllers.PoolOf(created); owner == nil || owner.UID != controllers.PoolOf(nstanceMachine).UID {
		return true, nil
	}
	c.writes.Record(created)
	return false, nil
}

// newNstanceMachine returns the NstanceMachine of an instance. Cluster API finds it by its
// labels and creates its Machine, which becomes its controller; so the pool is an owner and
// not the controller (docs/capi.md#ownership). The object is created with the finalizer, so
// that no deletion leaves the instance behind.
func newNstanceMachine(pool *v1beta1.NstanceMachinePool, machinePool *clusterv1.MachinePool, of instance) *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pool.Namespace,
			Name:      of.id,
			Labels: map[string]string{
				clusterv1.ClusterNameLabel:     machinePool.Spec.ClusterName,
				clusterv1.MachinePoolNameLabel: capi.LabelValue(machinePool.Name),
				v1beta1.LabelGroup:             string(pool.Spec.Group),
				v1beta1.LabelShard:             of.shard,
			},
			Finalizers: []string{v1beta1.FinalizerMachine},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1beta1.SchemeGroupVersion.String(),
				Kind:       v1beta1.PoolKind,
				Name:       pool.Name,
				UID:        pool.UID,
			}},
		},
		Spec: v1beta1.NstanceMachineSpec{
			GroupRef: v1beta1.GroupReference{Name: pool.Spec.Group},
			Shard:    v1beta1.Identifier(of.shard),
		},
	}
}
