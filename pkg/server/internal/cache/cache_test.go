// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/testing/tier"
)

var epoch = time.Date(2025, 6, 1, 12, 0, 0, 123456789, time.UTC)

// logs returns a context whose log lines are appended to the slice.
func logs(t *testing.T) (context.Context, *[]string) {
	var lines []string
	logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	return klog.NewContext(t.Context(), logr.New(logger.GetSink())), &lines
}

// open opens the cache at path and closes it at the end of the test.
func open(ctx context.Context, t *testing.T, path string) *DB {
	t.Helper()
	db, err := Open(ctx, path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func put(t *testing.T, db *DB, rows ...Row) {
	t.Helper()
	require.NoError(t, db.Put(t.Context(), rows...))
}

// rows returns all rows, ordered by id.
func rows(t *testing.T, db *DB) []Row {
	t.Helper()
	rows, err := db.Rows(t.Context())
	require.NoError(t, err)
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(a.Record.ID, b.Record.ID) })
	return rows
}

func shutdown(t *testing.T, db *DB) {
	t.Helper()
	require.NoError(t, db.Close())
}

// newRows returns n rows that have only the mandatory fields.
func newRows(n int) []Row {
	rows := make([]Row, n)
	for i := range rows {
		rows[i] = Row{
			ETag: fmt.Sprintf("etag-%d", i),
			Record: instance.Record{
				ID: fmt.Sprintf("id-%05d", i), Tenant: "default", Group: fmt.Sprintf("group-%d", i%100),
				InfraConfigHash: "sha256:" + strings.Repeat("0", 64), CreatedAt: epoch.Add(time.Duration(i)),
			},
		}
	}
	return rows
}

func TestRowsRoundTrip(t *testing.T) {
	ctx, lines := logs(t)
	path := filepath.Join(t.TempDir(), "odd name?mode=ro&%41.db")
	db := open(ctx, t, path)
	want := newRows(5)
	want[1].Record = instance.Record{
		ID: want[1].Record.ID, Tenant: "acme", Group: "build", OnDemand: true, IdempotencyKey: "k'1",
		Template: "large", InstanceType: "t3.large", SubnetPool: "open", Vars: map[string]string{"a": "<1>", "b": "é\x00"},
		InfraConfigHash: "sha256:1", CreatedAt: epoch, ProviderID: "kwok:///a/b",
	}
	want[2].Drain = &instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch.Add(5 * time.Minute)}
	want[3].Drain = &instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch, Acknowledged: true}
	want[3].DeleteReason = instance.ReasonExpired
	want[4].ETag, want[4].DeleteReason, want[4].DeletedAt = "", instance.ReasonRequested, epoch
	put(t, db, want...)
	if diff := cmp.Diff(want, rows(t, db)); diff != "" {
		t.Errorf("(-put +found):\n%s", diff)
	}
	shutdown(t, db)
	db = open(ctx, t, path)
	if diff := cmp.Diff(want, rows(t, db)); diff != "" {
		t.Errorf("after a restart (-put +found):\n%s", diff)
	}

	want[0].Record.ProviderID, want[0].ETag = "kwok:///a/c", "another"
	want[2].Drain = nil
	put(t, db, want[0], want[2])
	require.NoError(t, db.Delete(t.Context(), want[1].Record.ID, "unknown"))
	want = slices.Delete(want, 1, 2)
	if diff := cmp.Diff(want, rows(t, db)); diff != "" {
		t.Errorf("after changes (-put +found):\n%s", diff)
	}
	if len(*lines) != 0 {
		t.Errorf("logged %q, want nothing", *lines)
	}
}

func TestPurgeRemovesOldTombstonesOnly(t *testing.T) {
	db := open(t.Context(), t, filepath.Join(t.TempDir(), "cache.db"))
	all := newRows(4)
	all[1].DeletedAt = epoch.Add(-time.Nanosecond)
	all[2].DeletedAt = epoch
	all[3].DeleteReason = instance.ReasonExpired
	put(t, db, all...)
	require.NoError(t, db.Purge(t.Context(), epoch))
	if diff := cmp.Diff(slices.Delete(all, 1, 2), rows(t, db)); diff != "" {
		t.Errorf("(-want +found):\n%s", diff)
	}
}

func TestChangesAreAtomic(t *testing.T) {
	db := open(t.Context(), t, filepath.Join(t.TempDir(), "cache.db"))
	want := newRows(2)
	put(t, db, want...)
	groups := map[instance.GroupKey]Hashes{{Tenant: "default", Group: "a"}: {RuntimeConfig: "1", InfraConfig: "2"}}
	require.NoError(t, db.PutGroups(t.Context(), nil, groups))
	// Fails the second row of each change.
	_, err := db.sql.ExecContext(t.Context(), `
		CREATE TRIGGER a BEFORE INSERT ON instances WHEN new.id = 'id-00003' BEGIN SELECT raise(ABORT, 'no'); END;
		CREATE TRIGGER b BEFORE DELETE ON instances WHEN old.id = 'id-00001' BEGIN SELECT raise(ABORT, 'no'); END;
		CREATE TRIGGER c BEFORE INSERT ON groups WHEN new.group_key = 'b' BEGIN SELECT raise(ABORT, 'no'); END;`)
	require.NoError(t, err)
	if err := db.Put(t.Context(), newRows(4)[2:]...); err == nil || !strings.Contains(err.Error(), "id-00003") {
		t.Errorf("Put returns %v, want an error that names the instance", err)
	}
	if err := db.Delete(t.Context(), "id-00000", "id-00001"); err == nil || !strings.Contains(err.Error(), "id-00001") {
		t.Errorf("Delete returns %v, want an error that names the instance", err)
	}
	if err := db.PutGroups(t.Context(), groups, map[instance.GroupKey]Hashes{{Tenant: "default", Group: "b"}: {}}); err == nil || !strings.Contains(err.Error(), "default/b") {
		t.Errorf("PutGroups returns %v, want an error that names the group", err)
	}
	if diff := cmp.Diff(want, rows(t, db)); diff != "" {
		t.Errorf("instances (-before +after):\n%s", diff)
	}
	after, err := db.Groups(t.Context())
	require.NoError(t, err)
	if diff := cmp.Diff(groups, after); diff != "" {
		t.Errorf("groups (-before +after):\n%s", diff)
	}
}

func TestPutGroupsReplacesAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache.db")
	db := open(t.Context(), t, path)
	a, b, c := instance.GroupKey{Tenant: "default", Group: "a"}, instance.GroupKey{Tenant: "acme", Group: "a"}, instance.GroupKey{Tenant: "acme", Group: "c"}
	for _, known := range []bool{true, false} {
		before := map[instance.GroupKey]Hashes{}
		for _, want := range []map[instance.GroupKey]Hashes{
			{a: {RuntimeConfig: "1", InfraConfig: "2"}, b: {RuntimeConfig: "3", InfraConfig: "4"}},
			{b: {RuntimeConfig: "3", InfraConfig: "5"}, c: {}},
			{},
		} {
			if !known {
				before = nil
			}
			require.NoError(t, db.PutGroups(t.Context(), before, want))
			shutdown(t, db)
			db = open(t.Context(), t, path)
			found, err := db.Groups(t.Context())
			require.NoError(t, err)
			if diff := cmp.Diff(want, found); diff != "" {
				t.Errorf("(-put +found):\n%s", diff)
			}
			before = want
		}
	}
}

// A change of a group waits for the only connection, and so do the changes of instances: it writes no
// other group.
func TestPutGroupsWritesWhatDiffers(t *testing.T) {
	db := open(t.Context(), t, filepath.Join(t.TempDir(), "cache.db"))
	changes := func() (count int) {
		require.NoError(t, db.sql.QueryRowContext(t.Context(), `SELECT total_changes()`).Scan(&count))
		return count
	}
	before := map[instance.GroupKey]Hashes{}
	for n := range 1000 {
		before[instance.GroupKey{Tenant: "default", Group: fmt.Sprint("group-", n)}] = Hashes{RuntimeConfig: "1", InfraConfig: "2"}
	}
	require.NoError(t, db.PutGroups(t.Context(), nil, before))
	after := maps.Clone(before)
	after[instance.GroupKey{Tenant: "default", Group: "group-7"}] = Hashes{RuntimeConfig: "3", InfraConfig: "2"}
	after[instance.GroupKey{Tenant: "default", Group: "added"}] = Hashes{}
	delete(after, instance.GroupKey{Tenant: "default", Group: "group-8"})
	start := changes()
	require.NoError(t, db.PutGroups(t.Context(), before, after))
	require.Equal(t, 3, changes()-start, "rows that were written")
	found, err := db.Groups(t.Context())
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(after, found))
}

// TestGeneratedColumns queries the generated columns as a person would.
func TestGeneratedColumns(t *testing.T) {
	db := open(t.Context(), t, filepath.Join(t.TempDir(), "cache.db"))
	put(t, db, Row{Record: instance.Record{
		ID: "id", Tenant: "acme", Group: "build", OnDemand: true, IdempotencyKey: "key",
		InfraConfigHash: "hash", CreatedAt: epoch, ProviderID: "provider",
	}}, newRows(1)[0])
	var got string
	require.NoError(t, db.sql.QueryRowContext(t.Context(), `SELECT concat_ws(' ', tenant, group_key, on_demand, idempotency_key, infra_config_hash, created_at, provider_id)
		FROM instances WHERE tenant = 'acme' AND group_key = 'build'`).Scan(&got))
	if want := "acme build 1 key hash 2025-06-01T12:00:00.123456789Z provider"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var managed int
	require.NoError(t, db.sql.QueryRowContext(t.Context(), `SELECT count(*) FROM instances WHERE on_demand = 0 AND provider_id IS NULL`).Scan(&managed))
	if managed != 1 {
		t.Errorf("found %d managed instances without provider id, want 1", managed)
	}
}

// TestRelativePath opens a cache by a path relative to the working directory.
func TestRelativePath(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	db := open(t.Context(), t, "cache.db")
	put(t, db, newRows(1)...)
	shutdown(t, db)
	if found := rows(t, open(t.Context(), t, filepath.Join(dir, "cache.db"))); len(found) != 1 {
		t.Errorf("the file in the working folder has %d rows, want 1", len(found))
	}
}

func TestOpenFails(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing", "cache.db")
	if _, err := Open(t.Context(), missing); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("without its folder: %v, want an error with the path", err)
	}
	folder := filepath.Join(dir, "folder")
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "full"), 0o700))
	if _, err := Open(t.Context(), folder); err == nil || !strings.Contains(err.Error(), folder) {
		t.Errorf("with a folder in its place: %v, want an error with the path", err)
	}

	path := filepath.Join(dir, "cache.db")
	db := open(t.Context(), t, path)
	put(t, db, newRows(1)...)
	shutdown(t, db)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(canceled, path); !errors.Is(err, context.Canceled) {
		t.Errorf("with a canceled context: %v", err)
	}
	if found := rows(t, open(t.Context(), t, path)); len(found) != 1 {
		t.Errorf("after the cancellation the file has %d rows", len(found))
	}
}

// BenchmarkPut measures the time that the cache adds to each change of an instance.
func BenchmarkPut(b *testing.B) {
	db, err := Open(b.Context(), filepath.Join(b.TempDir(), "cache.db"))
	require.NoError(b, err)
	defer db.Close()
	rows := newRows(10_000)
	require.NoError(b, db.Put(b.Context(), rows...))
	i := 0
	for b.Loop() {
		require.NoError(b, db.Put(b.Context(), rows[i%len(rows)]))
		i++
	}
}

// BenchmarkOpen measures a warm start with 10,000 instances.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "cache.db")
	for b.Loop() {
		db, err := Open(b.Context(), path)
		require.NoError(b, err)
		rows, err := db.Rows(b.Context())
		require.NoError(b, err)
		if len(rows) == 0 {
			require.NoError(b, db.Put(b.Context(), newRows(10_000)...))
		}
		require.NoError(b, db.Close())
	}
}

func TestLeadershipID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache.db")
	db := open(t.Context(), t, path)
	for _, want := range []string{"", "first", "second"} {
		if want != "" {
			require.NoError(t, db.SetLeadershipID(t.Context(), want))
		}
		require.NoError(t, db.Close())
		db = open(t.Context(), t, path)
		if got, err := db.LeadershipID(t.Context()); err != nil || got != want {
			t.Errorf("the leadership id is %q, %v, want %q", got, err, want)
		}
	}
}

func TestDamagedRowIsIgnored(t *testing.T) {
	for name, damage := range map[string]string{
		"no record":        `UPDATE instances SET record = json_set(record, '$.vars', 'x') WHERE id = 'id-00001'`,
		"another's record": `UPDATE instances SET record = (SELECT record FROM instances WHERE id = 'id-00000') WHERE id = 'id-00001'`,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, lines := logs(t)
			db := open(ctx, t, filepath.Join(t.TempDir(), "cache.db"))
			all := newRows(3)
			put(t, db, all...)
			// The generated columns reject invalid JSON.
			_, err := db.sql.ExecContext(ctx, damage)
			require.NoError(t, err)
			found, err := db.Rows(ctx)
			require.NoError(t, err)
			slices.SortFunc(found, func(a, b Row) int { return strings.Compare(a.Record.ID, b.Record.ID) })
			if diff := cmp.Diff([]Row{all[0], all[2]}, found); diff != "" {
				t.Errorf("(-want +found):\n%s", diff)
			}
			if len(*lines) != 1 || !strings.Contains((*lines)[0], "id-00001") {
				t.Errorf("logged %q, want one line that names the instance", *lines)
			}
		})
	}
}

func TestUnusableFileIsRecreated(t *testing.T) {
	overwrite := func(change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, change(data), 0o600))
		}
	}
	execute := func(statement string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			db := open(t.Context(), t, path)
			_, err := db.sql.ExecContext(t.Context(), statement)
			require.NoError(t, err)
			shutdown(t, db)
		}
	}
	tests := []struct {
		name   string
		damage func(*testing.T, string)
		reason string
	}{
		{"empty", overwrite(func([]byte) []byte { return nil }), "of version 0"},
		{"no database", overwrite(func([]byte) []byte { return bytes.Repeat([]byte("nonsense"), 2000) }), "not a database"},
		{"cut off", overwrite(func(data []byte) []byte { return data[:len(data)/2] }), "malformed"},
		{"a page of zeros", overwrite(func(data []byte) []byte { clear(data[3*4096 : 4*4096]); return data }), ""},
		{"an index that lacks rows", execute(`PRAGMA writable_schema = ON;
			UPDATE sqlite_schema SET sql = 'CREATE INDEX instances_by_group ON instances (group_key, tenant)' WHERE name = 'instances_by_group'`), "instances_by_group"},
		{"an earlier version", execute(`PRAGMA user_version = 0`), "of version 0, needs 1"},
		{"a later version", execute(`PRAGMA user_version = 2`), "of version 2, needs 1"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cache.db")
			db := open(t.Context(), t, path)
			put(t, db, newRows(200)...)
			shutdown(t, db)
			tc.damage(t, path)

			ctx, lines := logs(t)
			db = open(ctx, t, path)
			if found := rows(t, db); len(found) != 0 {
				t.Errorf("has %d rows, want none", len(found))
			}
			if len(*lines) != 1 || !strings.Contains((*lines)[0], path) || !strings.Contains((*lines)[0], tc.reason) {
				t.Errorf("logged %q, want one line with the path and %q", *lines, tc.reason)
			}
			put(t, db, newRows(1)...)
			shutdown(t, db)
			if found := rows(t, open(ctx, t, path)); len(found) != 1 {
				t.Errorf("the new file has %d rows after a restart, want 1", len(found))
			}
			if len(*lines) != 1 {
				t.Errorf("the new file cannot be used either: %q", *lines)
			}
		})
	}
}

func TestRandomDamage(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(1, 5)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { testRandomDamage(t, rand.New(rand.NewPCG(seed, 2))) })
	}
}

func testRandomDamage(t *testing.T, random *rand.Rand) {
	pristine := filepath.Join(t.TempDir(), "cache.db")
	db := open(t.Context(), t, pristine)
	all := newRows(500)
	put(t, db, all...)
	shutdown(t, db)
	data, err := os.ReadFile(pristine)
	require.NoError(t, err)
	recreated := 0
	for range 40 {
		path := filepath.Join(t.TempDir(), "cache.db")
		damaged := bytes.Clone(data)
		for range 1 + random.IntN(3) {
			at := random.IntN(len(damaged))
			for i := at; i < min(at+1+random.IntN(512), len(damaged)); i++ {
				damaged[i] = byte(random.Uint32())
			}
		}
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		ctx, _ := logs(t)
		db := open(ctx, t, path)
		found, err := db.Rows(ctx)
		require.NoError(t, err)
		if len(found) == 0 {
			recreated++
		}
		put(t, db, all...)
		if diff := cmp.Diff(all, rows(t, db)); diff != "" {
			t.Fatalf("after it was filled again (-want +found):\n%s", diff)
		}
		shutdown(t, db)
	}
	if recreated == 0 {
		t.Error("no damage was found")
	}
	t.Logf("recreated %d times of 40", recreated)
}

func TestDeletedFileIsRecreated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache.db")
	db := open(t.Context(), t, path)
	put(t, db, newRows(200)...)
	for _, name := range []string{path, path + "-wal"} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, others could read the vars of instances", name, info.Mode())
		}
	}
	require.NoError(t, os.Remove(path))
	ctx, lines := logs(t)
	if found := rows(t, open(ctx, t, path)); len(found) != 0 {
		t.Errorf("has %d rows, want none", len(found))
	}
	if len(*lines) != 0 {
		t.Errorf("logged %q, want nothing: it is like a first start", *lines)
	}
}
