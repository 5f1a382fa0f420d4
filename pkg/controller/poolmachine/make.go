// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
)

// reasonNameTaken is that of the event of a pool that has an instance whose name
// something else has.
const reasonNameTaken = "NameTaken"

// create makes the NstanceMachines that were decided on.
func (c *Controller) create(ctx context.Context, seen observation, decided decision) error {
	created, taken := 0, decided.taken
	err := each(ctx, decided.create, func(wanted instance) error {
		stranger, err := c.createMember(ctx, newMember(seen.pool, seen.machinePools[0], wanted))
		switch {
		case err != nil:
			return err
		case stranger:
			taken = append(taken, wanted.id)
		default:
			created++
			c.memories.remember(seen.pool.UID, wanted.id, wanted.shard)
		}
		return nil
	})
	if created > 0 {
		klog.FromContext(ctx).Info("NstanceMachines made for instances of the pool", "number", created)
	}
	if untold := c.memories.tell(seen.pool.UID, taken); len(untold) > 0 {
		controller.Warn(c.recorder, seen.pool, reasonNameTaken, "CreateNstanceMachine", fmt.Sprintf(
			"instances get no NstanceMachine, because there is one of their name that is not of this pool: %s", strings.Join(untold, ", ")))
	}
	return err
}

// createMember makes one NstanceMachine. It tells whether the name is taken by one
// that is not of the pool; one that is was made by a request without an answer, or
// by a former leader.
func (c *Controller) createMember(ctx context.Context, member *v1beta1.NstanceMachine) (stranger bool, err error) {
	made, err := c.members.Create(ctx, member, metav1.CreateOptions{FieldManager: controller.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		made, err = c.members.Get(ctx, member.Name, metav1.GetOptions{})
	}
	if err != nil {
		return false, fmt.Errorf("create NstanceMachine %s: %w", klog.KObj(member), err)
	}
	if owner := controller.PoolOf(made); owner == nil || owner.UID != controller.PoolOf(member).UID {
		return true, nil
	}
	c.writes.Wrote(made)
	return false, nil
}

// newMember is the NstanceMachine of an instance. The labels are those by which
// Cluster API finds it and makes its Machine, which becomes its controller; so the
// pool is an owner and not the controller (CAPI contract). The finalizer comes
// with the object, so that no deletion leaves the instance behind.
func newMember(pool *v1beta1.NstanceMachinePool, machinePool *clusterv1.MachinePool, of instance) *v1beta1.NstanceMachine {
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
