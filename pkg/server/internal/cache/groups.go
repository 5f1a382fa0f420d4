// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cache

import (
	"context"
	"database/sql"
	"fmt"

	"nstance.dev/operator/pkg/server/instance"
)

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

// PutGroups replaces the hashes of all groups, or changes nothing.
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
		return fmt.Errorf("write the groups to the cache: %w", err)
	}
	return nil
}
