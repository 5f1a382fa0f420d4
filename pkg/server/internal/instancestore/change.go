// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
)

// Add stores the record of an instance that is about to be created at the
// provider. The error wraps ErrExists when the id was used before. After any
// other error it is unknown whether the record is stored. Adding the same
// record again is safe, and so is giving up: a stored record shows up as a
// pending instance after the next start.
func (s *Store) Add(ctx context.Context, record instance.Record) error {
	// Normalize the time to what decoding the record returns.
	record.CreatedAt = record.CreatedAt.Round(0).UTC()
	defer s.lock(record.ID)()
	if _, found := s.entry(record.ID); found {
		return fmt.Errorf("add instance %s: %w", record.ID, ErrExists)
	}
	row := cache.Row{Record: record}
	if key, err := recordKey(s.shard, &record); err == nil {
		row.ETag = s.damaged[key]
	}
	if err := s.store(ctx, &row); err != nil {
		return fmt.Errorf("add instance %s: %w", record.ID, err)
	}
	s.put(ctx, row)
	return nil
}

// SetProviderID stores the provider's own id. It is an error to replace it with
// another one.
func (s *Store) SetProviderID(ctx context.Context, id, providerID string) error {
	return s.change(id, "store the provider id", func(row cache.Row) error {
		if current := row.Record.ProviderID; current == providerID {
			return nil
		} else if current != "" {
			return fmt.Errorf("is %s already, not %s", current, providerID)
		}
		row.Record.ProviderID = providerID
		return s.save(ctx, row)
	})
}

// StartDrain begins a drain. It does not change a drain that has begun.
func (s *Store) StartDrain(ctx context.Context, id string, drain instance.Drain) error {
	return s.change(id, "start the drain", func(row cache.Row) error {
		if row.Drain != nil {
			return nil
		}
		row.Drain = &drain
		s.put(ctx, row)
		return nil
	})
}

// Acknowledge stores that the operator has drained an instance. The
// acknowledgement always counts (docs/server.md#drains): an instance whose
// drain was lost, because another server began it, gets one that is over.
func (s *Store) Acknowledge(ctx context.Context, id string) error {
	return s.change(id, "acknowledge the drain", func(row cache.Row) error {
		now := s.clock.Now()
		// The original reason is lost. The other reasons that lead to a drain
		// would be found again, this one might not.
		drain := instance.Drain{Reason: instance.ReasonUnhealthy, StartedAt: now, DeleteAt: now, Request: audit.RequestFrom(ctx)}
		if row.Drain != nil {
			drain = *row.Drain
		}
		if !drain.Acknowledged {
			drain.Acknowledged = true
			row.Drain = &drain
			s.put(ctx, row)
		}
		return nil
	})
}

// SetDeleting stores that the instance is about to be deleted at the provider.
// The first reason is kept.
func (s *Store) SetDeleting(ctx context.Context, id, reason string) error {
	return s.change(id, "store the deletion", func(row cache.Row) error {
		if row.DeleteReason == "" {
			row.DeleteReason = reason
			s.put(ctx, row)
		}
		return nil
	})
}

// RequestDeletion stores that a client has requested the deletion of an
// instance, so that every later server of the shard knows it too. The first
// request is kept, and so is another reason for which the instance is already
// being deleted. After an error that does not wrap ErrUnknown it is unknown
// whether the request is stored, and repeating it is safe.
func (s *Store) RequestDeletion(ctx context.Context, id string) error {
	return s.change(id, "store the deletion request", func(row cache.Row) error {
		if !row.Record.DeletionRequestedAt.IsZero() {
			return nil
		}
		// Normalize the time to what decoding the record returns.
		row.Record.DeletionRequestedAt = s.clock.Now().Round(0).UTC()
		row.DeletionRequest = audit.RequestFrom(ctx)
		return s.save(ctx, row)
	})
}

// save stores the record of a row, and then changes the row in memory and in the cache.
func (s *Store) save(ctx context.Context, row cache.Row) error {
	if err := s.store(ctx, &row); err != nil {
		return err
	}
	s.put(ctx, row)
	return nil
}

// Remove removes the record of an instance that the provider no longer lists.
// The instance stays available through Get until it is purged.
func (s *Store) Remove(ctx context.Context, id string) error {
	return s.change(id, "remove the record", func(row cache.Row) error {
		key, err := recordKey(s.shard, &row.Record)
		if err != nil {
			return err
		}
		if err := s.storage.Delete(ctx, key); err != nil {
			return err
		}
		row.ETag, row.DeletedAt = "", s.clock.Now()
		s.put(ctx, row)
		return nil
	})
}

// Purge removes the instances that were deleted before a time from memory and
// from the cache.
func (s *Store) Purge(ctx context.Context, before time.Time) {
	s.mu.Lock()
	s.index.purge(before)
	s.mu.Unlock()
	if err := s.cache.Purge(ctx, before); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to remove deleted instances from the cache")
	}
}

// change calls do with the row of an instance while its key is locked. It
// ignores deleted instances, which no longer change.
func (s *Store) change(id, what string, do func(cache.Row) error) error {
	defer s.lock(id)()
	e, found := s.entry(id)
	if !found {
		return fmt.Errorf("%s of instance %s: %w", what, id, ErrUnknown)
	}
	if e.isDeleted() {
		return nil
	}
	if err := do(*e.row); err != nil {
		return fmt.Errorf("%s of instance %s: %w", what, id, err)
	}
	return nil
}

// lock locks an instance against other changes until unlock is called.
func (s *Store) lock(id string) (unlock func()) {
	s.writing.LockKey(id)
	return func() { _ = s.writing.UnlockKey(id) } // fails only for a key that is not locked
}

// put stores row in the cache and then in memory, so that a drain that becomes
// visible survives a restart of the process. It ignores the cancellation of
// ctx, because the durable part is already stored.
func (s *Store) put(ctx context.Context, row cache.Row) {
	if err := s.cache.Put(context.WithoutCancel(ctx), row); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to update the cache", "instance", row.Record.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.put(&row)
}
