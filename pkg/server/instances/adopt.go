// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instances

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
)

// Adopt makes records for the instances of the provider that have none, so that
// they are counted instead of made a second time. Such an instance is a managed
// one, since nothing says otherwise, is as old as its id, and has no hash of a
// configuration: it counts as made from another one. The provider must be synced.
//
// Instances whose record was removed a while ago are not adopted but returned:
// they were to go and have come back, and the caller ends them again.
//
// The error joins those of all instances that could not be adopted.
func (s *Store) Adopt(ctx context.Context) (returned []instance.VM, err error) {
	var errs []error
	for _, group := range s.provider.Groups() {
		for _, vm := range s.provider.List(group) {
			e, found := s.entry(vm.ID)
			switch {
			case vm.State == instance.Terminating:
				// Goes by itself.
			case !found:
				errs = append(errs, s.adopt(ctx, vm))
			case e.gone():
				returned = append(returned, vm)
			}
		}
	}
	return returned, errors.Join(errs...)
}

func (s *Store) adopt(ctx context.Context, vm instance.VM) error {
	id, err := puidv7.Parse(vm.ID)
	if err != nil {
		return fmt.Errorf("adopting an instance of group %s: %w", vm.Group, err)
	}
	err = s.Add(ctx, instance.Record{
		ID:         vm.ID,
		Tenant:     vm.Group.Tenant,
		Group:      vm.Group.Group,
		CreatedAt:  id.Time(),
		ProviderID: vm.ProviderID,
	})
	if errors.Is(err, ErrExists) {
		return nil // was added in the meantime
	}
	if err != nil {
		return fmt.Errorf("adopting an instance of group %s: %w", vm.Group, err)
	}
	klog.FromContext(ctx).Info("Adopted an instance without a record",
		"instance", vm.ID, "tenant", vm.Group.Tenant, "group", vm.Group.Group, "createdAt", id.Time())
	return nil
}
