// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instances

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"

	"nstance.dev/operator/pkg/server/cache"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// store writes the record of row, in place of the object with the etag of row if
// it has one, and notes the new etag in row.
func (s *Store) store(ctx context.Context, row *cache.Row) error {
	key, err := recordKey(s.shard, &row.Record)
	if err != nil {
		return err
	}
	err = s.write(ctx, key, row)
	if errors.Is(err, storage.ErrConflict) {
		// An earlier change may have been written, of which only the answer was lost.
		if readErr := s.rebase(ctx, key, row); readErr != nil {
			return errors.Join(err, readErr)
		}
		err = s.write(ctx, key, row)
	}
	if err != nil {
		return err
	}
	endOnRequest(row)
	return nil
}

// write is one attempt of store.
func (s *Store) write(ctx context.Context, key string, row *cache.Row) error {
	data, err := json.Marshal(row.Record)
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

// rebase makes row one that can be written in place of the object that is there.
// What can only be set once stays as it is there. When anything else is different,
// somebody else has written the object, which is an error.
func (s *Store) rebase(ctx context.Context, key string, row *cache.Row) error {
	object, err := s.storage.Get(ctx, key)
	if err != nil {
		return err
	}
	there, err := decode(s.shard, key, object.Data)
	if err != nil {
		return err
	}
	merged := row.Record
	merged.ProviderID = cmp.Or(merged.ProviderID, there.ProviderID)
	if at := there.DeletionRequestedAt; !at.IsZero() {
		merged.DeletionRequestedAt = at
	}
	there.ProviderID = cmp.Or(there.ProviderID, merged.ProviderID)
	there.DeletionRequestedAt = merged.DeletionRequestedAt
	if same, err := equal(merged, there); err != nil || !same {
		return cmp.Or(err, errors.New("the record is not the one that was stored"))
	}
	row.Record, row.ETag = merged, object.ETag
	return nil
}

// equal tells whether two records are stored as the same.
func equal(a, b instance.Record) (bool, error) {
	dataA, errA := json.Marshal(a)
	dataB, errB := json.Marshal(b)
	return bytes.Equal(dataA, dataB), errors.Join(errA, errB)
}

// endOnRequest makes row one of an instance that ends, if a caller has asked for
// that. It returns whether that changes row.
func endOnRequest(row *cache.Row) bool {
	if row.DeleteReason != "" || row.Record.DeletionRequestedAt.IsZero() {
		return false
	}
	row.DeleteReason = instance.ReasonRequested
	return true
}
