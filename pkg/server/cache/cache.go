// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package cache keeps in one SQLite file what a restarted server would otherwise
// have to read anew from the storage, and the few things that are nowhere else
// because they may be lost: drains, deletions that were begun, and the memory of
// instances that are gone (server document). The file can be deleted at any time.
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
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// DB is an open cache. It is safe for use by several goroutines of one process.
// It holds no more than was put in: what that means is the caller's.
type DB struct {
	sql *sql.DB
}

// Open uses the file at path, or makes it in a folder that exists. A file that
// is damaged, or was made by a version of the server with other tables, is
// removed and made anew, empty: there are no migrations, since everything can be
// had again. The caller makes sure that no other process uses the file.
func Open(ctx context.Context, path string) (*DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("opening the cache: %w", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		db, err := use(ctx, path)
		if err == nil {
			return db, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("opening the cache %s: %w", path, err)
		}
		klog.FromContext(ctx).Info("The cache cannot be used and is made anew", "path", path, "reason", err)
	}
	db, err := create(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("making the cache %s: %w", path, err)
	}
	return db, nil
}

// Reign returns what SetReign put last, "" when nothing.
func (db *DB) Reign(ctx context.Context) (string, error) {
	var reign string
	err := db.sql.QueryRowContext(ctx, `SELECT reign FROM reigns`).Scan(&reign)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("reading the reign from the cache: %w", err)
	}
	return reign, nil
}

// SetReign notes under whose lead the cache was last made equal to the storage.
// What it says of drains and deletions is right as long as nobody else has led.
func (db *DB) SetReign(ctx context.Context, reign string) error {
	err := db.transaction(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM reigns`); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO reigns (reign) VALUES (?)`, reign)
		return err
	})
	if err != nil {
		return fmt.Errorf("noting the reign in the cache: %w", err)
	}
	return nil
}

// Close writes what is still in the log to the file and closes it.
func (db *DB) Close() error {
	return db.sql.Close()
}

// use opens a file that exists, if it is whole and of this schema.
func use(ctx context.Context, path string) (*DB, error) {
	return opened(path, func(db *DB) error {
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

// create makes the file, and removes what is in its place or was left of it.
func create(ctx context.Context, path string) (*DB, error) {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	// SQLite gives its other files the same mode. Vars of instances are nobody
	// else's business.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	return opened(path, func(db *DB) error {
		// The version is part of the transaction: whoever finds it finds all tables.
		return db.transaction(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, schema)
			return err
		})
	})
}

// opened connects to the file at path, and stays connected if ready says so.
func opened(path string, ready func(*DB) error) (*DB, error) {
	// With the log, NORMAL syncs the disk once in a thousand pages and not at
	// every commit. A loss of power takes the latest changes away, which a cache
	// may lose. With OFF it could also leave pages of different times in the file,
	// and a row that has the right etag is believed.
	source := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		"_pragma": {"journal_mode(WAL)", "synchronous(NORMAL)", "busy_timeout(5000)"},
	}.Encode()}
	pool, err := sql.Open("sqlite", source.String())
	if err != nil {
		return nil, err
	}
	// SQLite has one writer anyway: callers wait for each other here, where the
	// wait ends with their context.
	pool.SetMaxOpenConns(1)
	db := &DB{sql: pool}
	if err := ready(db); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return db, nil
}

// transaction does all that do does, or nothing.
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
