// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instances

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/cache"
	"nstance.dev/operator/pkg/server/instance"
)

// Add stores the record of an instance that the provider is going to be asked
// for. The error wraps ErrExists when the id was used before. After any other
// error nobody knows whether the record is stored: to add the same one again is
// safe, and so is to give up, since what is stored shows as a pending instance
// after the next start.
func (s *Store) Add(ctx context.Context, record instance.Record) error {
	// In the form in which it will be read.
	record.CreatedAt = record.CreatedAt.Round(0).UTC()
	defer s.lock(record.ID)()
	if _, found := s.entry(record.ID); found {
		return fmt.Errorf("adding instance %s: %w", record.ID, ErrExists)
	}
	row := cache.Row{Record: record}
	if err := s.store(ctx, &row); err != nil {
		return fmt.Errorf("adding instance %s: %w", record.ID, err)
	}
	s.put(ctx, row)
	return nil
}

// SetProviderID stores the provider's own id. An instance keeps the first one:
// to set another is an error.
func (s *Store) SetProviderID(ctx context.Context, id, providerID string) error {
	return s.change(id, "storing the provider id", func(row cache.Row) error {
		if current := row.Record.ProviderID; current == providerID {
			return nil
		} else if current != "" {
			return fmt.Errorf("is %s already, not %s", current, providerID)
		}
		row.Record.ProviderID = providerID
		if err := s.store(ctx, &row); err != nil {
			return err
		}
		s.put(ctx, row)
		return nil
	})
}

// StartDrain begins a drain. One that has begun goes on as it is.
func (s *Store) StartDrain(ctx context.Context, id string, drain instance.Drain) error {
	return s.change(id, "starting the drain", func(row cache.Row) error {
		if row.Drain == nil {
			row.Drain = &drain
			s.put(ctx, row)
		}
		return nil
	})
}

// Acknowledge notes that the operator has drained an instance. The operator is
// always believed (server document): an instance without a drain, since the
// server that began it is no more, is given one that is over.
func (s *Store) Acknowledge(ctx context.Context, id string) error {
	return s.change(id, "acknowledging the drain", func(row cache.Row) error {
		now := s.clock.Now()
		// The reason that the operator was told is lost. The others that lead to a
		// drain would come back by themselves, this one may not.
		drain := instance.Drain{Reason: instance.ReasonUnhealthy, StartedAt: now, DeleteAt: now}
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

// SetDeleting notes that the provider is going to be told to end an instance.
// The first reason stays.
func (s *Store) SetDeleting(ctx context.Context, id, reason string) error {
	return s.change(id, "noting the deletion", func(row cache.Row) error {
		if row.DeleteReason == "" {
			row.DeleteReason = reason
			s.put(ctx, row)
		}
		return nil
	})
}

// RequestDeletion stores that a caller wants an instance to end, so that any
// server of the shard that comes later knows it too. The first request stays, and
// so does another reason for which the instance is ending already. After an error
// that does not wrap ErrUnknown nobody knows whether it is stored, and to ask
// again is safe.
func (s *Store) RequestDeletion(ctx context.Context, id string) error {
	return s.change(id, "storing the request to delete", func(row cache.Row) error {
		if !row.Record.DeletionRequestedAt.IsZero() {
			return nil
		}
		// In the form in which it will be read.
		row.Record.DeletionRequestedAt = s.clock.Now().Round(0).UTC()
		if err := s.store(ctx, &row); err != nil {
			return err
		}
		s.put(ctx, row)
		return nil
	})
}

// Remove removes the record of an instance that the provider does not know any
// more. The instance is remembered until it is purged.
func (s *Store) Remove(ctx context.Context, id string) error {
	return s.change(id, "removing the record", func(row cache.Row) error {
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

// Purge forgets the instances that were gone before a time.
func (s *Store) Purge(ctx context.Context, before time.Time) {
	s.mu.Lock()
	s.index.purge(before)
	s.mu.Unlock()
	if err := s.cache.Purge(ctx, before); err != nil {
		klog.FromContext(ctx).Error(err, "Instances that are gone stay in the cache")
	}
}

// change calls do with the row of an instance, while nobody else changes it. One
// that is gone does not change any more.
func (s *Store) change(id, what string, do func(cache.Row) error) error {
	defer s.lock(id)()
	e, found := s.entry(id)
	if !found {
		return fmt.Errorf("%s of instance %s: %w", what, id, ErrUnknown)
	}
	if e.gone() {
		return nil
	}
	if err := do(*e.row); err != nil {
		return fmt.Errorf("%s of instance %s: %w", what, id, err)
	}
	return nil
}

// lock keeps others from changing an instance until unlock is called.
func (s *Store) lock(id string) (unlock func()) {
	s.writing.LockKey(id)
	return func() { _ = s.writing.UnlockKey(id) } // fails only for a key that is not locked
}

// put makes row known, to the cache first: who learns of a drain can rely on it
// to outlive the process. The end of ctx does not matter any more, since what
// had to be stored is.
func (s *Store) put(ctx context.Context, row cache.Row) {
	if err := s.cache.Put(context.WithoutCancel(ctx), row); err != nil {
		klog.FromContext(ctx).Error(err, "The cache is behind", "instance", row.Record.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.put(&row)
}
