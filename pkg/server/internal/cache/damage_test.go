// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/tier"
)

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
