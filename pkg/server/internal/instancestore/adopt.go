// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/puidv7"
)

// Unrecorded returns the provider's instances that have no record and are not being
// deleted: the storage was restored from an older backup, or has lost records.
func (s *Store) Unrecorded() []instance.VM {
	unrecorded, _ := s.compare()
	return unrecorded
}

// compare returns the provider's instances without a record, and the instances whose record
// was removed. It leaves out instances that are being deleted.
func (s *Store) compare() (unrecorded, returned []instance.VM) {
	for _, group := range s.provider.Groups() {
		for _, vm := range s.provider.List(group) {
			e, found := s.entry(vm.ID)
			switch {
			case vm.State == instance.Terminating:
			case !found:
				unrecorded = append(unrecorded, vm)
			case e.isDeleted():
				returned = append(returned, vm)
			}
		}
	}
	return unrecorded, returned
}

// adopters is how many records are written concurrently.
const adopters = 16

// Adopt creates records for the provider's instances that have no record, so that they are
// neither created a second time nor terminated. A record has the group and the origin that
// the provider has stored, and the age of the id. The provider must be synced.
//
// If the record of an instance was removed earlier, it is stored again, marked as returned.
//
// The error joins the errors of all instances that another attempt may adopt. Instances with
// damaged metadata can never be adopted, and are logged.
func (s *Store) Adopt(ctx context.Context) error {
	unrecorded, returned := s.compare()
	errs := make([]error, len(unrecorded)+len(returned))
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), adopters, len(errs), func(i int) {
		if i < len(unrecorded) {
			errs[i] = s.adopt(ctx, unrecorded[i])
		} else {
			errs[i] = s.adoptReturned(ctx, returned[i-len(unrecorded)])
		}
	})
	return errors.Join(errs...)
}

// adoptReturned stores the record of a deleted instance again, without earlier decisions
// about the instance: something may run on it.
func (s *Store) adoptReturned(ctx context.Context, vm instance.VM) error {
	defer s.lock(vm.ID)()
	e, found := s.entry(vm.ID)
	if !found || !e.isDeleted() {
		return nil // was changed concurrently
	}
	row := cache.Row{Record: e.row.Record}
	row.Record.Returned, row.Record.DeletionRequestedAt = true, time.Time{}
	row.Record.ProviderID = cmp.Or(vm.ProviderID, row.Record.ProviderID)
	if err := s.store(ctx, &row); err != nil {
		return fmt.Errorf("adopt returned instance %s of group %s: %w", vm.ID, vm.Group, err)
	}
	s.put(ctx, row)
	klog.FromContext(ctx).Info("Adopted an instance that the provider lists again after its deletion", "instance", vm.ID,
		"tenant", vm.Group.Tenant, "group", vm.Group.Group, "deletedAt", e.row.DeletedAt, "reason", e.row.DeleteReason)
	return nil
}

func (s *Store) adopt(ctx context.Context, vm instance.VM) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "instance", vm.ID, "tenant", vm.Group.Tenant, "group", vm.Group.Group)
	record, err := s.recordOf(vm)
	if err != nil {
		logger.Error(err, "An instance without a record is ignored, because its metadata is damaged")
		return nil
	}
	err = s.Add(ctx, record)
	if errors.Is(err, ErrExists) {
		return nil // was added concurrently
	}
	if err != nil {
		return fmt.Errorf("adopt an instance of group %s: %w", vm.Group, err)
	}
	logger.Info("Adopted an instance without a record", "onDemand", record.OnDemand, "createdAt", record.CreatedAt)
	return nil
}

// recordOf returns the record that the provider's metadata of an instance describes.
func (s *Store) recordOf(vm instance.VM) (instance.Record, error) {
	id, err := puidv7.Parse(vm.ID)
	if err != nil {
		return instance.Record{}, err
	}
	record := instance.Record{
		ID:              vm.ID,
		Tenant:          vm.Group.Tenant,
		Group:           vm.Group.Group,
		OnDemand:        vm.Origin.OnDemand,
		IdempotencyKey:  vm.Origin.IdempotencyKey,
		InfraConfigHash: vm.Origin.InfraConfigHash,
		Adopted:         true,
		CreatedAt:       id.Time(),
		ProviderID:      vm.ProviderID,
	}
	_, err = recordKey(s.shard, &record)
	return record, err
}
