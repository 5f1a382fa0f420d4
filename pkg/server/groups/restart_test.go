// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nstance.dev/operator/pkg/server/config"
)

// TestRestartWithAnotherConfiguration restarts with another configuration than
// the one with which the changes were stored.
func TestRestartWithAnotherConfiguration(t *testing.T) {
	t.Run("static groups are dropped", func(t *testing.T) {
		store := newStorage(t)
		s := open(t, store)
		before := *upsert(t, s, main, Change{Size: 8})
		s = openWith(t, store, newConfigWith(nil))
		// A group that an operator has changed becomes dynamic and keeps its
		// settings.
		wantDynamic(t, s, before)
		// Without a change nothing is stored of the group.
		if group, found := s.Get(plain); found {
			t.Errorf("still exists: %+v", group)
		}
	})
	t.Run("a static group changes before it is dropped", func(t *testing.T) {
		store := newStorage(t)
		upsert(t, open(t, store), plain, Change{Size: 8})
		s := openWith(t, store, newConfigWith(map[string]config.Group{
			"plain": {Template: "arm", Vars: map[string]string{"a": "b"}, Args: map[string]any{"a": "b"}, DrainTimeout: new(time.Duration(0))},
		}))
		before := *get(t, s, plain)
		if before.Template != "arm" || before.Size != 8 {
			t.Errorf("is %+v, want the configured template and the stored size", before)
		}
		s = openWith(t, store, newConfigWith(nil))
		wantDynamic(t, s, before)
	})
	t.Run("a dynamic group becomes static", func(t *testing.T) {
		store := newStorage(t)
		createObject(t, store, `{"default": {"dynamic": {"template": "unknown", "size": 8, "subnet_pools": ["unknown"]}}}`)
		s := openWith(t, store, newConfigWith(map[string]config.Group{"dynamic": {Template: "arm", Size: new(int32(1))}}))
		group := get(t, s, dynamic)
		if !group.Static || group.Template != "arm" || group.Size != 8 || !cmp.Equal(group.SubnetPools, []string{"closed"}) {
			t.Errorf("is %+v, want the configured template and pool, and the stored size", group)
		}
	})
	t.Run("a pool is no longer for dynamic groups", func(t *testing.T) {
		store := newStorage(t)
		createObject(t, store, `{"default": {"dynamic": {"template": "worker", "size": 1, "subnet_pools": ["closed"]}}}`)
		s := open(t, store)
		if size := upsert(t, s, dynamic, Change{Size: 5}).Size; size != 5 {
			t.Errorf("the size is %d, want 5", size)
		}
	})
	t.Run("settings that operators cannot set are kept", func(t *testing.T) {
		store := newStorage(t)
		s := open(t, store)
		upsert(t, s, main, Change{Size: 8})
		upsert(t, s, plain, Change{Size: 8})
		next := newConfigWith(nil)
		next.Shard.DefaultDrainTimeout = time.Hour
		next.Defaults.Args = map[string]any{"labels": map[string]any{"own": "no", "region": "east"}}
		s = openWith(t, store, next)
		// The group keeps its own timeout and argument. The other settings
		// follow the configuration.
		group := upsert(t, s, main, Change{Size: 9})
		want := map[string]any{"labels": map[string]any{"own": "yes", "tier": "one", "region": "east"}}
		if diff := cmp.Diff(want, group.Args); diff != "" || group.DrainTimeout != time.Minute {
			t.Errorf("the drain timeout is %s, want %s, and the args (-want +got):\n%s", group.DrainTimeout, time.Minute, diff)
		}
		if timeout := get(t, s, plain).DrainTimeout; timeout != time.Hour {
			t.Errorf("the drain timeout is %s, want that of the shard", timeout)
		}
		if content := string(readObject(t, store).Data); !strings.Contains(content, `"drain_timeout": "1m0s"`) {
			t.Errorf("the drain timeout is not stored as text: %s", content)
		}
		if diff := cmp.Diff(snapshot(t, s), snapshot(t, openWith(t, store, next))); diff != "" {
			t.Errorf("(-before +after a restart):\n%s", diff)
		}
		// Once the group is static again, the stored values have no effect.
		s = openWith(t, store, newConfigWith(map[string]config.Group{"main": {Template: "worker"}}))
		want = map[string]any{"labels": map[string]any{"tier": "one", "region": "west"}}
		group = get(t, s, main)
		if diff := cmp.Diff(want, group.Args); diff != "" || group.DrainTimeout != 5*time.Minute {
			t.Errorf("the drain timeout is %s, want %s, and the args (-want +got):\n%s", group.DrainTimeout, 5*time.Minute, diff)
		}
	})
}
