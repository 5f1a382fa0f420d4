// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cache

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/instance"
)

// Row is the cached state of an instance.
type Row struct {
	Record instance.Record
	// ETag is the etag of the record in the storage. While the storage has the
	// same etag, Record is up to date. It is empty once the record was removed.
	ETag string
	// Drain is nil unless the instance is being drained.
	Drain *instance.Drain
	// DeleteReason is set before the deletion is requested from the provider.
	DeleteReason string
	// DeletionRequest is not in the cache, and neither is Drain.Request: another column would
	// drop the cache of a server of an earlier version.
	DeletionRequest audit.Request
	// DeletedAt is zero unless the row is a tombstone: the instance was deleted
	// and its record was removed.
	DeletedAt time.Time
}

// Rows returns all rows, in no particular order. A damaged row is left out and counts as
// lost.
func (db *DB) Rows(ctx context.Context) ([]Row, error) {
	found, err := db.sql.QueryContext(ctx, `SELECT id, record, storage_etag,
		drain_reason, drain_started_at, drain_delete_at, drain_acknowledged, delete_reason, deleted_at FROM instances`)
	if err != nil {
		return nil, fmt.Errorf("read the instances of the cache: %w", err)
	}
	defer found.Close()
	var rows []Row
	for found.Next() {
		var id, record string
		var reason sql.NullString
		var startedAt, deleteAt, deletedAt sql.NullInt64
		var acknowledged sql.NullBool
		var row Row
		if err := found.Scan(&id, &record, &row.ETag,
			&reason, &startedAt, &deleteAt, &acknowledged, &row.DeleteReason, &deletedAt); err != nil {
			return nil, fmt.Errorf("read an instance of the cache: %w", err)
		}
		if row.Record, err = instance.UnmarshalRecord([]byte(record)); err != nil || row.Record.ID != id {
			klog.FromContext(ctx).Info("Ignored a damaged row of the cache", "instance", id)
			continue
		}
		if startedAt.Valid {
			row.Drain = &instance.Drain{
				Reason:       reason.String,
				StartedAt:    timeOf(startedAt),
				DeleteAt:     timeOf(deleteAt),
				Acknowledged: acknowledged.Bool,
			}
		}
		row.DeletedAt = timeOf(deletedAt)
		rows = append(rows, row)
	}
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("read the instances of the cache: %w", err)
	}
	return rows, nil
}

// Put inserts or replaces all rows, or changes nothing.
func (db *DB) Put(ctx context.Context, rows ...Row) error {
	err := db.transaction(ctx, func(tx *sql.Tx) error {
		put, err := tx.PrepareContext(ctx, `INSERT OR REPLACE INTO instances (id, record, storage_etag,
			drain_reason, drain_started_at, drain_delete_at, drain_acknowledged, delete_reason, deleted_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`)
		if err != nil {
			return err
		}
		defer put.Close()
		for _, row := range rows {
			record, err := instance.MarshalRecord(row.Record)
			if err != nil {
				return fmt.Errorf("instance %s: %w", row.Record.ID, err)
			}
			var reason sql.NullString
			var startedAt, deleteAt sql.NullInt64
			var acknowledged sql.NullBool
			if drain := row.Drain; drain != nil {
				reason = sql.NullString{String: drain.Reason, Valid: true}
				startedAt = sql.NullInt64{Int64: drain.StartedAt.UnixNano(), Valid: true}
				deleteAt = sql.NullInt64{Int64: drain.DeleteAt.UnixNano(), Valid: true}
				acknowledged = sql.NullBool{Bool: drain.Acknowledged, Valid: true}
			}
			deletedAt := sql.NullInt64{Int64: row.DeletedAt.UnixNano(), Valid: !row.DeletedAt.IsZero()}
			if _, err := put.ExecContext(ctx, row.Record.ID, string(record), row.ETag,
				reason, startedAt, deleteAt, acknowledged, row.DeleteReason, deletedAt); err != nil {
				return fmt.Errorf("instance %s: %w", row.Record.ID, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write %d instances to the cache: %w", len(rows), err)
	}
	return nil
}

// Delete deletes all rows, or changes nothing. Unknown ids are ignored.
func (db *DB) Delete(ctx context.Context, ids ...string) error {
	err := db.transaction(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, `DELETE FROM instances WHERE id = ?`, id); err != nil {
				return fmt.Errorf("instance %s: %w", id, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove %d instances from the cache: %w", len(ids), err)
	}
	return nil
}

// Purge deletes the tombstones that are older than before.
func (db *DB) Purge(ctx context.Context, before time.Time) error {
	if _, err := db.sql.ExecContext(ctx, `DELETE FROM instances WHERE deleted_at < ?`, before.UnixNano()); err != nil {
		return fmt.Errorf("remove tombstones from the cache: %w", err)
	}
	return nil
}

// timeOf returns the time in a column, or the zero time for NULL.
func timeOf(column sql.NullInt64) time.Time {
	if !column.Valid {
		return time.Time{}
	}
	return time.Unix(0, column.Int64).UTC()
}

// Hashes are the digests of a group's configuration (docs/server.md#cache).
type Hashes struct {
	// RuntimeConfig covers the settings that a running instance can receive.
	RuntimeConfig string
	// InfraConfig covers the settings that only a new instance can receive.
	InfraConfig string
}

// Groups returns the hashes of all groups.
func (db *DB) Groups(ctx context.Context) (map[instance.GroupKey]Hashes, error) {
	found, err := db.sql.QueryContext(ctx, `SELECT tenant, group_key, runtime_config_hash, infra_config_hash FROM groups`)
	if err != nil {
		return nil, fmt.Errorf("read the groups of the cache: %w", err)
	}
	defer found.Close()
	groups := map[instance.GroupKey]Hashes{}
	for found.Next() {
		var key instance.GroupKey
		var hashes Hashes
		if err := found.Scan(&key.Tenant, &key.Group, &hashes.RuntimeConfig, &hashes.InfraConfig); err != nil {
			return nil, fmt.Errorf("read a group of the cache: %w", err)
		}
		groups[key] = hashes
	}
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("read the groups of the cache: %w", err)
	}
	return groups, nil
}

// PutGroups replaces the hashes of all groups, or changes nothing. before are the hashes that the cache
// has, of which only those that differ are written; nil if they are unknown.
func (db *DB) PutGroups(ctx context.Context, before, groups map[instance.GroupKey]Hashes) error {
	err := db.transaction(ctx, func(tx *sql.Tx) error {
		if before == nil {
			if _, err := tx.ExecContext(ctx, `DELETE FROM groups`); err != nil {
				return err
			}
		}
		for key := range before {
			if _, kept := groups[key]; kept {
				continue
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM groups WHERE tenant = ? AND group_key = ?`, key.Tenant, key.Group); err != nil {
				return fmt.Errorf("group %s: %w", key, err)
			}
		}
		for key, hashes := range groups {
			if stored, found := before[key]; found && stored == hashes {
				continue
			}
			if _, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?)`,
				key.Tenant, key.Group, hashes.RuntimeConfig, hashes.InfraConfig); err != nil {
				return fmt.Errorf("group %s: %w", key, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the groups to the cache: %w", err)
	}
	return nil
}
