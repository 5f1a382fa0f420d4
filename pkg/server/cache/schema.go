// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cache

// schemaVersion is raised with every change of the schema. It is the last line
// of the schema as well.
const schemaVersion = 1

// schema has the tables of the server document. Times are Unix nanoseconds, so
// that they come back as they were.
//
// The record of an instance is stored once, as it is in the storage. The columns
// that are generated from it are for those who look into the file: they cannot
// say anything else than the record.
//
// There is no column for the nonce that an instance was started with: a row that
// was made anew could not have it. A nonce is good when its signature is and the
// record that it names is there and has no registration yet.
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
