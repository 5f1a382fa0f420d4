// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cache

// schemaVersion is raised with every change of the schema. The last line of the
// schema repeats it.
const schemaVersion = 1

// schema creates the tables (docs/server.md#cache). Times are Unix nanoseconds,
// so that they are read exactly as they were written.
//
// The record of an instance is stored once, in the form it has in the storage.
// The columns that are generated from it are for people who inspect the file:
// they cannot differ from the record.
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
