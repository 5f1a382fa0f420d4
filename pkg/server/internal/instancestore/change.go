// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/storage"
)

// Add stores the record of an instance that is about to be created at the
// provider. The error wraps ErrExists when the id was used before. After any
// other error it is unknown whether the record is stored. Adding the same
// record again is safe, and so is giving up: a stored record shows up as a
// pending instance after the next start.
func (s *Store) Add(ctx context.Context, record instance.Record) error {
	// Drop the parts of the time that encoding the record drops.
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

// SetProviderID stores the provider's own id. It is an error to replace it with another id.
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

// Acknowledge stores that the operator has drained an instance. The acknowledgement always
// counts (docs/server.md#drains): if the drain was lost, because another server began it, the
// instance gets a drain that is over.
func (s *Store) Acknowledge(ctx context.Context, id string) error {
	return s.change(id, "acknowledge the drain", func(row cache.Row) error {
		now := s.clock.Now()
		// The original reason is lost. Other reasons for a drain would be found again, but an
		// unhealthy instance may look healthy now.
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
		// Drop the parts of the time that encoding the record drops.
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

// ErrOtherKey means that an instance is registered with another key.
var ErrOtherKey = errors.New("the instance is registered with another public key")

// Register stores the result of next as the registration of an instance. next gets the
// present registration, or nil, and is called again if another writer has changed the record.
// An error of next stores nothing and is returned. After any other error it is unknown
// whether the registration is stored: an agent may repeat its request with the same key. The
// error wraps ErrUnknown also if the instance was deleted.
func (s *Store) Register(ctx context.Context, id string, next func(*instance.Registration) (instance.Registration, error)) error {
	exists := false
	err := s.change(id, "store the registration", func(row cache.Row) error {
		exists = true
		// If two attempts conflict, the second reads the stored registration.
		const attempts = 2
		for attempt := 1; ; attempt++ {
			registration, err := next(row.Record.Registration)
			if err != nil {
				return err
			}
			changed := row
			changed.Record.Registration = normalized(registration)
			if err = s.save(ctx, changed); !errors.Is(err, ErrOtherKey) || attempt == attempts {
				return err
			}
			// The row in memory is older than the record.
			if err := s.reread(ctx, &row); err != nil {
				return err
			}
		}
	})
	if err == nil && !exists {
		return fmt.Errorf("store the registration of instance %s: %w", id, ErrUnknown)
	}
	return err
}

// reread replaces the record of row by the stored record.
func (s *Store) reread(ctx context.Context, row *cache.Row) error {
	key, err := recordKey(s.shard, &row.Record)
	if err != nil {
		return err
	}
	object, err := s.storage.Get(ctx, key)
	if err != nil {
		return err
	}
	record, err := decode(s.shard, key, object.Data)
	if err != nil {
		return err
	}
	row.Record, row.ETag = record, object.ETag
	s.put(ctx, *row)
	return nil
}

// normalized returns the registration with times as they are decoded.
func normalized(r instance.Registration) *instance.Registration {
	r.ExpiresAt, r.RegisteredAt = r.ExpiresAt.Round(0).UTC(), r.RegisteredAt.Round(0).UTC()
	r.PreviousUntil = r.PreviousUntil.Round(0).UTC()
	return &r
}

// mergeRegistrations returns the registration with the later certificate of two registrations
// of one instance. A different key is an error, whichever was first.
func mergeRegistrations(ours, stored *instance.Registration) (*instance.Registration, error) {
	switch {
	case stored == nil:
		return ours, nil
	case ours == nil:
		return stored, nil
	case ours.PublicKeyPEM != stored.PublicKeyPEM:
		return nil, ErrOtherKey
	case ours.ExpiresAt.Before(stored.ExpiresAt):
		return stored, nil
	}
	return ours, nil
}

// errChanged means that another writer has changed a record.
var errChanged = errors.New("the stored record has other content")

// setOutdated reports that another writer has changed or removed a record.
func (s *Store) setOutdated(err error) {
	if s.outdated != nil {
		s.outdated(err)
	}
}

// store writes the record of row and updates the etag of row. It replaces the object with the
// etag of row, or creates the object if the etag is empty.
func (s *Store) store(ctx context.Context, row *cache.Row) error {
	key, err := recordKey(s.shard, &row.Record)
	if err != nil {
		return err
	}
	err = s.write(ctx, key, row)
	if errors.Is(err, storage.ErrConflict) {
		// An earlier change may have been written although its answer was lost.
		readErr := s.rebase(ctx, key, row)
		if errors.Is(readErr, errChanged) || errors.Is(readErr, storage.ErrNotFound) {
			s.setOutdated(errors.Join(err, readErr))
		}
		if readErr != nil {
			return errors.Join(err, readErr)
		}
		err = s.write(ctx, key, row)
	}
	if err != nil {
		return err
	}
	applyDeletionRequest(row)
	return nil
}

// write is one attempt of store.
func (s *Store) write(ctx context.Context, key string, row *cache.Row) error {
	data, err := instance.MarshalRecord(row.Record)
	if err != nil {
		return err
	}
	var etag string
	if row.ETag == "" {
		etag, err = s.storage.Create(ctx, key, data)
	} else {
		etag, err = s.storage.Replace(ctx, key, data, row.ETag)
	}
	if err != nil {
		return err
	}
	row.ETag = etag
	return nil
}

// rebase prepares row to replace the stored object. Fields that can be set only
// once keep their stored value, and a registration is kept. Any other difference means
// that another writer has changed the object, which is an error.
func (s *Store) rebase(ctx context.Context, key string, row *cache.Row) error {
	object, err := s.storage.Get(ctx, key)
	if err != nil {
		return err
	}
	stored, err := decode(s.shard, key, object.Data)
	if err != nil {
		return errors.Join(errChanged, err)
	}
	merged := row.Record
	merged.ProviderID = cmp.Or(merged.ProviderID, stored.ProviderID)
	if at := stored.DeletionRequestedAt; !at.IsZero() {
		merged.DeletionRequestedAt = at
	}
	if merged.Registration, err = mergeRegistrations(merged.Registration, stored.Registration); err != nil {
		return err
	}
	stored.Registration = merged.Registration
	stored.ProviderID = cmp.Or(stored.ProviderID, merged.ProviderID)
	stored.DeletionRequestedAt = merged.DeletionRequestedAt
	if same, err := equal(merged, stored); err != nil || !same {
		return cmp.Or(err, errChanged)
	}
	row.Record, row.ETag = merged, object.ETag
	return nil
}

// equal reports whether two records have the same stored form.
func equal(a, b instance.Record) (bool, error) {
	dataA, errA := instance.MarshalRecord(a)
	dataB, errB := instance.MarshalRecord(b)
	return bytes.Equal(dataA, dataB), errors.Join(errA, errB)
}

// applyDeletionRequest sets the reason for the deletion if a client has
// requested it. It reports whether that changes row.
func applyDeletionRequest(row *cache.Row) bool {
	if row.DeleteReason != "" || row.Record.DeletionRequestedAt.IsZero() {
		return false
	}
	row.DeleteReason = instance.ReasonRequested
	return true
}
