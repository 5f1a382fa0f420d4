// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cache

import (
	"context"
	"database/sql"
	"fmt"

	"nstance.dev/operator/pkg/server/instance"
)

// Hashes are the digests of a group's configuration (server document).
type Hashes struct {
	// RuntimeConfig covers what a running instance can be given.
	RuntimeConfig string
	// InfraConfig covers what takes another instance to change.
	InfraConfig string
}

// Groups returns the hashes of all groups as they were put last.
func (db *DB) Groups(ctx context.Context) (map[instance.GroupKey]Hashes, error) {
	found, err := db.sql.QueryContext(ctx, `SELECT tenant, group_key, runtime_config_hash, infra_config_hash FROM groups`)
	if err != nil {
		return nil, fmt.Errorf("reading the groups of the cache: %w", err)
	}
	defer found.Close()
	groups := map[instance.GroupKey]Hashes{}
	for found.Next() {
		var key instance.GroupKey
		var hashes Hashes
		if err := found.Scan(&key.Tenant, &key.Group, &hashes.RuntimeConfig, &hashes.InfraConfig); err != nil {
			return nil, fmt.Errorf("reading a group of the cache: %w", err)
		}
		groups[key] = hashes
	}
	if err := found.Err(); err != nil {
		return nil, fmt.Errorf("reading the groups of the cache: %w", err)
	}
	return groups, nil
}

// PutGroups makes the table equal to groups, or leaves it as it is.
func (db *DB) PutGroups(ctx context.Context, groups map[instance.GroupKey]Hashes) error {
	err := db.transaction(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM groups`); err != nil {
			return err
		}
		for key, hashes := range groups {
			if _, err := tx.ExecContext(ctx, `INSERT INTO groups VALUES (?, ?, ?, ?)`,
				key.Tenant, key.Group, hashes.RuntimeConfig, hashes.InfraConfig); err != nil {
				return fmt.Errorf("group %s: %w", key, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("writing the groups to the cache: %w", err)
	}
	return nil
}

// PutGroup makes or replaces the row of one group. Without hashes it removes it.
func (db *DB) PutGroup(ctx context.Context, key instance.GroupKey, hashes *Hashes) error {
	var err error
	if hashes == nil {
		_, err = db.sql.ExecContext(ctx, `DELETE FROM groups WHERE tenant = ? AND group_key = ?`, key.Tenant, key.Group)
	} else {
		_, err = db.sql.ExecContext(ctx, `INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?)`,
			key.Tenant, key.Group, hashes.RuntimeConfig, hashes.InfraConfig)
	}
	if err != nil {
		return fmt.Errorf("writing group %s to the cache: %w", key, err)
	}
	return nil
}
