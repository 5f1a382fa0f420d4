// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// owner is the Machine that owns a machine, nil when none does; orphan tells that
// one did and is gone. The cache may not have a Machine yet that the API server
// has, so what it does not have is asked for. A machine that is being deleted
// goes its way without.
func (c *Controller) owner(ctx context.Context, machine *v1beta1.NstanceMachine) (owner *clusterv1.Machine, orphan bool, err error) {
	ref := metav1.GetControllerOfNoCopy(machine)
	if ref == nil || ref.Kind != "Machine" || !ofGroup(ref.APIVersion, clusterv1.GroupVersion.Group) {
		return nil, false, nil
	}
	owner, err = c.ownerLister.Get(ref.Name)
	if err == nil && owner.UID == ref.UID {
		return owner, false, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, false, fmt.Errorf("read Machine %s from the cache: %w", c.key(ref.Name), err)
	}
	if !machine.DeletionTimestamp.IsZero() {
		return nil, false, nil
	}
	owner, err = c.owners.Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && owner.UID != ref.UID {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("look for Machine %s that owns machine %s: %w", c.key(ref.Name), klog.KObj(machine), err)
	}
	return owner, false, nil
}

func ofGroup(apiVersion, group string) bool {
	version, err := schema.ParseGroupVersion(apiVersion)
	return err == nil && version.Group == group
}

// removeOwner deletes the Machine of an instance that is gone. Cluster API then
// deletes the machine.
func (c *Controller) removeOwner(ctx context.Context, owner *clusterv1.Machine) error {
	err := c.owners.Delete(ctx, owner.Name, controller.Exactly(owner))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete Machine %s: %w", klog.KObj(owner), err)
	}
	klog.FromContext(ctx).Info("Machine deleted, since the shard has ended its instance", "machine", klog.KObj(owner))
	return nil
}

// discard deletes a machine that nobody owns any more.
func (c *Controller) discard(ctx context.Context, machine *v1beta1.NstanceMachine) error {
	err := c.machines.Delete(ctx, machine.Name, controller.Exactly(machine))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete machine %s, which has no Machine: %w", klog.KObj(machine), err)
	}
	klog.FromContext(ctx).Info("Deleted, since there is no Machine that owns it")
	return nil
}
