// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instances

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/keymutex"

	"nstance.dev/operator/pkg/server/cache"
	"nstance.dev/operator/pkg/server/storage"
)

// readers is how many records are read at a time.
const readers = 16

// Open reads the records of the shard that the cache does not have in their
// present form, and makes the cache equal to them. A record that cannot be read
// is an error that names its key: to go on without it would make an instance a
// second time. A cache that cannot be read is taken for an empty one.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{
		storage:  o.Storage,
		cache:    o.Cache,
		provider: o.Provider,
		shard:    o.Shard,
		clock:    o.Clock,
		writing:  keymutex.NewHashed(writers),
		index:    newIndex(),
	}
	cached := s.cached(ctx)
	infos, err := s.storage.List(ctx, storage.InstancePrefix(s.shard))
	if err != nil {
		return nil, fmt.Errorf("listing the instances of shard %s: %w", s.shard, err)
	}
	var differ []string
	for _, info := range infos {
		if cached[info.Key].ETag != info.ETag {
			differ = append(differ, info.Key)
		}
	}
	records, err := s.read(ctx, differ)
	if err != nil {
		return nil, err
	}

	var put []cache.Row
	for _, info := range infos {
		row := cached[info.Key]
		changed := row.ETag != info.ETag
		if changed {
			record, found := records[info.Key]
			if !found {
				continue // removed since it was listed
			}
			// What has a record is there, whatever is remembered.
			row.Record, row.ETag, row.DeletedAt = record.Record, record.ETag, time.Time{}
		}
		if o.Stale && (row.Drain != nil || row.DeleteReason != "") {
			row.Drain, row.DeleteReason = nil, ""
			changed = true
		}
		changed = endOnRequest(&row) || changed
		delete(cached, info.Key)
		s.index.put(&row)
		if changed {
			put = append(put, row)
		}
	}

	// The rest has no record.
	var drop []string
	for _, row := range cached {
		switch {
		case !row.DeletedAt.IsZero():
			s.index.put(&row)
		case row.DeleteReason != "":
			// It was to go, and the server ended before it could say that it is gone.
			row.ETag, row.DeletedAt = "", s.clock.Now()
			s.index.put(&row)
			put = append(put, row)
		default:
			// Nobody has decided that it goes. If the provider has it, it is adopted.
			drop = append(drop, row.Record.ID)
		}
	}
	logger := klog.FromContext(ctx)
	if err := errors.Join(s.cache.Put(ctx, put...), s.cache.Delete(ctx, drop...)); err != nil {
		logger.Error(err, "The cache is not equal to the storage")
	}
	logger.Info("Opened instances", "records", len(infos), "read", len(records), "dropped", len(drop))
	return s, nil
}

// cached returns the rows of the cache by the keys of their records.
func (s *Store) cached(ctx context.Context) map[string]cache.Row {
	logger := klog.FromContext(ctx)
	rows, err := s.cache.Rows(ctx)
	if err != nil {
		logger.Error(err, "Going on without the cache")
	}
	byKey := make(map[string]cache.Row, len(rows))
	for _, row := range rows {
		key, err := recordKey(s.shard, &row.Record)
		if err != nil {
			logger.Info("A row of the cache is damaged and left out", "instance", row.Record.ID, "reason", err)
			continue
		}
		byKey[key] = row
	}
	return byKey
}

// read returns rows, made of nothing but their records, by the keys of these.
// Those that do not exist any more are left out.
func (s *Store) read(ctx context.Context, keys []string) (map[string]cache.Row, error) {
	rows := make([]cache.Row, len(keys))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	workqueue.ParallelizeUntil(ctx, readers, len(keys), func(i int) {
		object, err := s.storage.Get(ctx, keys[i])
		if errors.Is(err, storage.ErrNotFound) {
			return
		}
		if err == nil {
			rows[i].ETag = object.ETag
			rows[i].Record, err = decode(s.shard, keys[i], object.Data)
		}
		if err != nil {
			stop(fmt.Errorf("reading the record of an instance, %s: %w", keys[i], err))
		}
	})
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	byKey := make(map[string]cache.Row, len(keys))
	for i, key := range keys {
		if rows[i].ETag != "" {
			byKey[key] = rows[i]
		}
	}
	return byKey, nil
}
