// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/keymutex"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
)

// readers is how many records are read concurrently. Until all are read, the shard is not served:
// 10,000 records of an object storage that answers after 40 ms take 6 s.
const readers = 64

// Open reads the records whose current version is not in the cache, and updates
// the cache. A record that cannot be read is an error that names its key:
// without it the instance would be created a second time. A cache that cannot
// be read counts as empty.
//
// A damaged record does not prevent the use of other records. It is replaced by the row of
// the cache or, if the provider lists the instance, by the record that Adopt creates. A
// record of a newer format is an error.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{
		storage:  o.Storage,
		cache:    o.Cache,
		provider: o.Provider,
		shard:    o.Shard,
		clock:    o.Clock,
		agents:   o.Agents,
		outdated: o.Outdated,
		damaged:  map[string]string{},
		writing:  keymutex.NewHashed(writers),
		index:    newIndex(),
	}
	cached := s.cached(ctx)
	infos, err := s.storage.List(ctx, storage.InstancePrefix(s.shard))
	if err != nil {
		return nil, fmt.Errorf("list the instances of shard %s: %w", s.shard, err)
	}
	var changedKeys []string
	for _, info := range infos {
		if cached[info.Key].ETag != info.ETag {
			changedKeys = append(changedKeys, info.Key)
		}
	}
	records, err := s.read(ctx, changedKeys)
	if err != nil {
		return nil, err
	}

	var put []cache.Row
	for _, info := range infos {
		row := cached[info.Key]
		changed := row.ETag != info.ETag
		if changed {
			record, found := records[info.Key]
			switch etag, damaged := s.damaged[info.Key]; {
			case damaged && row.ETag != "":
				record = cache.Row{Record: row.Record, ETag: etag}
			case damaged || !found: // or removed since it was listed
				continue
			}
			// An instance with a record exists, even if the cache has a
			// tombstone.
			row.Record, row.ETag, row.DeletedAt = record.Record, record.ETag, time.Time{}
		}
		if o.Stale && (row.Drain != nil || row.DeleteReason != "") {
			row.Drain, row.DeleteReason = nil, ""
			changed = true
		}
		changed = applyDeletionRequest(&row) || changed
		delete(cached, info.Key)
		s.index.put(&row)
		if changed {
			put = append(put, row)
		}
	}

	// The remaining rows have no record.
	var remove []string
	for _, row := range cached {
		switch {
		case !row.DeletedAt.IsZero():
			s.index.put(&row)
		case row.DeleteReason != "":
			// The deletion was decided, and the server stopped before it could store that the
			// instance was deleted.
			row.ETag, row.DeletedAt = "", s.clock.Now()
			s.index.put(&row)
			put = append(put, row)
		default:
			// The deletion was not decided. If the provider lists the instance, it is
			// adopted.
			remove = append(remove, row.Record.ID)
		}
	}
	logger := klog.FromContext(ctx)
	if err := errors.Join(s.cache.Put(ctx, put...), s.cache.Delete(ctx, remove...)); err != nil {
		logger.Error(err, "Failed to update the cache")
	}
	logger.Info("Opened instances", "records", len(infos), "read", len(records), "dropped", len(remove))
	return s, nil
}

// cached returns the rows of the cache by the keys of their records.
func (s *Store) cached(ctx context.Context) map[string]cache.Row {
	logger := klog.FromContext(ctx)
	rows, err := s.cache.Rows(ctx)
	if err != nil {
		logger.Error(err, "Continuing without the cache")
	}
	byKey := make(map[string]cache.Row, len(rows))
	for _, row := range rows {
		key, err := recordKey(s.shard, &row.Record)
		if err != nil {
			logger.Info("Ignored a damaged row of the cache", "instance", row.Record.ID, "reason", err)
			continue
		}
		byKey[key] = row
	}
	return byKey
}

// read returns new rows with the records under the keys. It omits records that no longer
// exist.
func (s *Store) read(ctx context.Context, keys []string) (map[string]cache.Row, error) {
	rows, damages := make([]cache.Row, len(keys)), make([]error, len(keys))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	workqueue.ParallelizeUntil(ctx, readers, len(keys), func(i int) {
		object, err := s.storage.Get(ctx, keys[i])
		if errors.Is(err, storage.ErrNotFound) {
			return
		}
		if err == nil {
			rows[i].ETag = object.ETag
			rows[i].Record, damages[i] = decode(s.shard, keys[i], object.Data)
			// A newer record is not damaged, and must not be replaced.
			if newer, is := errors.AsType[*storage.NewerFormatError](damages[i]); is {
				err = newer
			}
		}
		if err != nil {
			stop(fmt.Errorf("read the record %s of an instance: %w", keys[i], err))
		}
	})
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	byKey := make(map[string]cache.Row, len(keys))
	for i, key := range keys {
		switch {
		case damages[i] != nil:
			klog.FromContext(ctx).Error(damages[i], "The record of an instance is damaged", "key", key)
			s.damaged[key] = rows[i].ETag
		case rows[i].ETag != "":
			byKey[key] = rows[i]
		}
	}
	return byKey, nil
}

// decode decodes the object under key and checks that the record belongs to the key.
func decode(shard, key string, data []byte) (instance.Record, error) {
	record, err := instance.UnmarshalRecord(data)
	if err != nil {
		return instance.Record{}, err
	}
	want, err := recordKey(shard, &record)
	if err != nil {
		return instance.Record{}, err
	}
	if want != key {
		return instance.Record{}, fmt.Errorf("belongs to the key %s", want)
	}
	return record, nil
}

// recordKey returns the key of a record, or an error for an invalid record.
func recordKey(shard string, record *instance.Record) (string, error) {
	id, err := puidv7.Parse(record.ID)
	if err != nil {
		return "", err
	}
	if err := identifier.Validate(record.Tenant); err != nil {
		return "", fmt.Errorf("tenant: %w", err)
	}
	if err := identifier.Validate(record.Group); err != nil {
		return "", fmt.Errorf("group: %w", err)
	}
	if record.CreatedAt.IsZero() {
		return "", errors.New("created_at is missing")
	}
	return storage.InstanceKey(shard, record.Tenant, id.StorageKey()), nil
}
