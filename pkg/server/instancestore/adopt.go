// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
)

// Adopt creates records for the provider's instances that have none, so that
// they count towards their group instead of being created a second time. Such
// an instance is a managed one, because nothing says otherwise. Its age is that
// of its id. It has no configuration hash and so counts as created from another
// configuration. The provider must be synced.
//
// Adopt returns the instances whose record was removed earlier. They were
// deleted and have reappeared; the caller deletes them again.
//
// The error joins the errors of all instances that could not be adopted.
func (s *Store) Adopt(ctx context.Context) (returned []instance.VM, err error) {
	var errs []error
	for _, group := range s.provider.Groups() {
		for _, vm := range s.provider.List(group) {
			e, found := s.entry(vm.ID)
			switch {
			case vm.State == instance.Terminating:
				// Its deletion is already in progress.
			case !found:
				errs = append(errs, s.adopt(ctx, vm))
			case e.isDeleted():
				returned = append(returned, vm)
			}
		}
	}
	return returned, errors.Join(errs...)
}

func (s *Store) adopt(ctx context.Context, vm instance.VM) error {
	id, err := puidv7.Parse(vm.ID)
	if err != nil {
		return fmt.Errorf("adopt an instance of group %s: %w", vm.Group, err)
	}
	err = s.Add(ctx, instance.Record{
		ID:         vm.ID,
		Tenant:     vm.Group.Tenant,
		Group:      vm.Group.Group,
		CreatedAt:  id.Time(),
		ProviderID: vm.ProviderID,
	})
	if errors.Is(err, ErrExists) {
		return nil // was added concurrently
	}
	if err != nil {
		return fmt.Errorf("adopt an instance of group %s: %w", vm.Group, err)
	}
	klog.FromContext(ctx).Info("Adopted an instance without a record",
		"instance", vm.ID, "tenant", vm.Group.Tenant, "group", vm.Group.Group, "createdAt", id.Time())
	return nil
}
