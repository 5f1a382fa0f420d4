// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package cache keeps, in one SQLite file, the state that a restarted server would
// otherwise have to read again from the storage. It also keeps the few facts
// that are stored nowhere else because they may be lost: drains, deletions in
// progress, and tombstones of deleted instances (docs/server.md#cache). The
// file can be deleted at any time.
package cache

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"
	_ "modernc.org/sqlite" // registers the driver "sqlite"
)

// DB is an open cache. It is safe for concurrent use within one process. It
// stores what callers put in and does not interpret it.
type DB struct {
	sql *sql.DB
}

// Open opens the file at path, or creates it in an existing folder. A file that
// is damaged, or has another schema version, is removed and created again,
// empty: there are no migrations, because everything can be read again. The
// caller makes sure that no other process uses the file.
func Open(ctx context.Context, path string) (*DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open the cache: %w", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		db, err := openExisting(ctx, path)
		if err == nil {
			return db, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("open the cache %s: %w", path, err)
		}
		klog.FromContext(ctx).Info("The cache cannot be used, creating it again", "path", path, "reason", err)
	}
	db, err := create(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("create the cache %s: %w", path, err)
	}
	return db, nil
}

// LeadershipID returns the id that SetLeadershipID last stored, or "".
func (db *DB) LeadershipID(ctx context.Context) (string, error) {
	var id string
	err := db.sql.QueryRowContext(ctx, `SELECT reign FROM reigns`).Scan(&id)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("read the leadership id from the cache: %w", err)
	}
	return id, nil
}

// SetLeadershipID stores the leadership id under which the cache was last made
// equal to the storage. The drains and deletions in the cache are valid only as
// long as no other server has led since.
func (db *DB) SetLeadershipID(ctx context.Context, id string) error {
	err := db.transaction(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM reigns`); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO reigns (reign) VALUES (?)`, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("store the leadership id in the cache: %w", err)
	}
	return nil
}

// Close flushes the write-ahead log to the file and closes it.
func (db *DB) Close() error {
	return db.sql.Close()
}

// openExisting opens an existing file if it is intact and has this schema.
func openExisting(ctx context.Context, path string) (*DB, error) {
	return connect(path, func(db *DB) error {
		var version int
		if err := db.sql.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&version); err != nil {
			return err
		}
		if version != schemaVersion {
			return fmt.Errorf("its tables are of version %d, needs %d", version, schemaVersion)
		}
		var result string
		if err := db.sql.QueryRowContext(ctx, `PRAGMA integrity_check(1)`).Scan(&result); err != nil {
			return err
		}
		if result != "ok" {
			return errors.New(result)
		}
		return nil
	})
}

// create creates the file after it has removed the previous file and its companion files.
func create(ctx context.Context, path string) (*DB, error) {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	// SQLite gives its other files the same mode (https://www.sqlite.org/wal.html). Vars of
	// instances are confidential.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	return connect(path, func(db *DB) error {
		// The version is part of the transaction: a file that has the version
		// has all tables.
		return db.transaction(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, schema)
			return err
		})
	})
}

// connect opens the file at path and closes it again if prepare fails.
func connect(path string, prepare func(*DB) error) (*DB, error) {
	// With a write-ahead log, NORMAL syncs the disk about once per thousand pages instead of
	// at every commit (https://www.sqlite.org/pragma.html#pragma_synchronous). A power
	// failure can lose the latest changes, which a cache may do. OFF could also leave pages
	// of different times in the file, and a row with the right etag is trusted.
	source := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		"_pragma": {"journal_mode(WAL)", "synchronous(NORMAL)", "busy_timeout(5000)"},
	}.Encode()}
	pool, err := sql.Open("sqlite", source.String())
	if err != nil {
		return nil, err
	}
	// SQLite allows one writer anyway (https://www.sqlite.org/lockingv3.html). With one
	// connection, callers wait here, where their context limits the wait.
	pool.SetMaxOpenConns(1)
	db := &DB{sql: pool}
	if err := prepare(db); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return db, nil
}

// transaction runs do in a transaction: all of its changes are made, or no change.
func (db *DB) transaction(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := db.sql.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// schemaVersion is raised with every change of the schema. The last line of the
// schema repeats it.
const schemaVersion = 1

// schema creates the tables (docs/server.md#cache). Times are Unix nanoseconds,
// so that they are read exactly as they were written.
//
// The record of an instance is stored once, in its form in the storage. The columns that are
// generated from it are for people who inspect the file: they cannot differ from the record.
//
// There is no column for the nonce that an instance was started with, because a
// row that is read from the storage again could not have it. A nonce is valid
// when its signature is valid, and the record that it names exists and has no
// registration with another key.
const schema = `
CREATE TABLE groups (
	tenant              TEXT NOT NULL,
	group_key           TEXT NOT NULL,
	runtime_config_hash TEXT NOT NULL,
	infra_config_hash   TEXT NOT NULL,
	PRIMARY KEY (tenant, group_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE instances (
	id                 TEXT PRIMARY KEY,
	record             TEXT NOT NULL,
	storage_etag       TEXT NOT NULL,
	drain_reason       TEXT,
	drain_started_at   INTEGER,
	drain_delete_at    INTEGER,
	drain_acknowledged INTEGER,
	delete_reason      TEXT NOT NULL,
	deleted_at         INTEGER,
	tenant             TEXT AS (record ->> '$.tenant'),
	group_key          TEXT AS (record ->> '$.group'),
	provider_id        TEXT AS (record ->> '$.provider_id'),
	on_demand          INTEGER AS (coalesce(record ->> '$.on_demand', 0)),
	idempotency_key    TEXT AS (record ->> '$.idempotency_key'),
	infra_config_hash  TEXT AS (record ->> '$.infra_config_hash'),
	created_at         TEXT AS (record ->> '$.created_at')
) STRICT;

-- At most one row.
CREATE TABLE reigns (reign TEXT NOT NULL) STRICT;

CREATE INDEX instances_by_group ON instances (tenant, group_key);
CREATE INDEX instances_by_deletion ON instances (deleted_at) WHERE deleted_at IS NOT NULL;

PRAGMA user_version = 1;
`
