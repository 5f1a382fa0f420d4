// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore

import (
	"bytes"
	"cmp"
	"context"
	"errors"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/storage"
)

// errChanged means that another writer has changed a record.
var errChanged = errors.New("the stored record has other content")

// setOutdated reports that another writer has changed or removed a record.
func (s *Store) setOutdated(err error) {
	if s.outdated != nil {
		s.outdated(err)
	}
}

// store writes the record of row and updates the etag of row. It replaces the
// object with the etag of row, or creates the object if that is empty.
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
