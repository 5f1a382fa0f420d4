// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
)

// Environment variables of a child process that is to crash.
const (
	crashDir  = "NSTANCE_TEST_CRASH_DIR"
	crashStep = "NSTANCE_TEST_CRASH_STEP"
)

// testRecord is the only instance of the crash tests. Its id is fixed, so that parent and
// child use the same id.
var testRecord = instance.Record{
	ID: "knc06bgm7733st2576nx5jht4ecjw", Tenant: group.Tenant, Group: group.Group,
	InfraConfigHash: "sha256:1", CreatedAt: epoch,
}

var testDrain = instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch.Add(5 * time.Minute)}

// runLifecycle creates, drains and deletes an instance. It calls reach with the
// name of every step at which a process can crash.
func runLifecycle(s *shard, reach func(step string)) {
	ctx := s.t.Context()
	s.storage.intervene(nil, func(method, _ string) error {
		// The object is written, the row is not.
		reach(method)
		return nil
	})
	reach("nothing")
	require.NoError(s.t, s.Add(ctx, testRecord))
	reach("record and row")
	s.cloud.show(s.t, vmOf(testRecord, instance.Running))
	reach("created")
	require.NoError(s.t, s.SetProviderID(ctx, testRecord.ID, "cloud:///"+testRecord.ID))
	reach("provider id in the row")
	require.NoError(s.t, s.StartDrain(ctx, testRecord.ID, testDrain))
	reach("draining")
	require.NoError(s.t, s.Acknowledge(ctx, testRecord.ID))
	reach("acknowledged")
	require.NoError(s.t, s.SetDeleting(ctx, testRecord.ID, instance.ReasonExpired))
	reach("deleting")
	s.cloud.remove(s.t, testRecord.ID)
	reach("deleted")
	require.NoError(s.t, s.Remove(ctx, testRecord.ID))
	reach("removed")
}

// TestCrashingChild runs in a child process of TestCrash, which kills itself with SIGKILL. Without
// a step it is nobody's child, and has nothing to do.
func TestCrashingChild(t *testing.T) {
	step := os.Getenv(crashStep)
	if step == "" {
		return
	}
	s := newShard(t, os.Getenv(crashDir))
	runLifecycle(s, func(reached string) {
		if reached == step {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			select {}
		}
	})
	t.Fatalf("no step is %q", step)
}

// found is the state of the instance when a server starts.
type found struct {
	// exists and deleted are both false when the instance is unknown.
	exists, deleted bool
	state           instance.State
	known           bool
	providerID      bool
	// drain, acknowledged and deleting are the decisions.
	drain, acknowledged, deleting bool
}

func find(s *shard) found {
	i, exists := s.Get(testRecord.ID)
	if !exists {
		return found{}
	}
	f := found{
		exists: i.DeletedAt.IsZero(), deleted: !i.DeletedAt.IsZero(),
		state: i.State, known: i.Known, providerID: i.ProviderID != "",
		drain: i.Drain != nil, deleting: i.DeleteReason != "",
	}
	f.acknowledged = f.drain && i.Drain.Acknowledged
	return f
}

// withoutDecisions returns f without the decisions, which only the cache has.
func (f found) withoutDecisions() found {
	if f.deleted {
		return found{}
	}
	f.drain, f.acknowledged, f.deleting = false, false, false
	return f
}

// TestCrash kills a server at every step of an instance's lifecycle, and starts another
// server with the remaining cache, without a cache and with a damaged cache.
func TestCrash(t *testing.T) {
	running := found{exists: true, state: instance.Running, known: true, providerID: true}
	with := func(f found, edit func(*found)) found {
		edit(&f)
		return f
	}
	steps := []struct {
		step string
		want found
	}{
		// No instance was created, and its id is never used.
		{"nothing", found{}},
		// The next server creates it at the provider, or gives up after a
		// while.
		{"Create", found{exists: true, state: instance.Pending}},
		{"record and row", found{exists: true, state: instance.Pending}},
		// The provider reports the id that is missing in the record.
		{"created", found{exists: true, state: instance.Running, known: true}},
		{"Replace", running},
		{"provider id in the row", running},
		{"draining", with(running, func(f *found) { f.drain = true })},
		{"acknowledged", with(running, func(f *found) { f.drain, f.acknowledged = true, true })},
		{"deleting", with(running, func(f *found) { f.drain, f.acknowledged, f.deleting = true, true, true })},
		{"deleted", found{exists: true, state: instance.Missing, providerID: true, drain: true, acknowledged: true, deleting: true}},
		{"Delete", found{deleted: true, state: instance.Missing, providerID: true, drain: true, acknowledged: true, deleting: true}},
		{"removed", found{deleted: true, state: instance.Missing, providerID: true, drain: true, acknowledged: true, deleting: true}},
	}
	caches := []struct {
		name   string
		damage func(*testing.T, string)
		kept   bool
	}{
		{"kept", func(*testing.T, string) {}, true},
		{"deleted", func(t *testing.T, path string) {
			for _, suffix := range []string{"", "-wal", "-shm"} {
				if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
		}, false},
		{"damaged", func(t *testing.T, path string) {
			// Damage the log too, or else SQLite repairs the file.
			for _, suffix := range []string{"", "-wal"} {
				require.NoError(t, os.WriteFile(path+suffix, []byte("what a broken disk may give back"), 0o600))
			}
		}, false},
	}
	for _, step := range steps {
		// One child serves all three cases: its files are copied.
		left := t.TempDir()
		crash(t, left, step.step)
		for _, c := range caches {
			t.Run(fmt.Sprintf("%s, cache %s", step.step, c.name), func(t *testing.T) {
				dir := t.TempDir()
				require.NoError(t, os.CopyFS(dir, os.DirFS(left)))
				c.damage(t, filepath.Join(dir, "cache.db"))
				s := newShard(t, dir)
				want := step.want
				if !c.kept {
					want = want.withoutDecisions()
				}
				if got := find(s); got != want {
					t.Errorf("the new server finds\n%+v, want\n%+v", got, want)
				}
				finish(t, s)
			})
		}
	}
}

// crash runs a child until it kills itself at a step.
func crash(t *testing.T, dir, step string) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrashingChild$")
	child.Env = append(os.Environ(), crashDir+"="+dir, crashStep+"="+step)
	output, err := child.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child exited with %v:\n%s", err, output)
	}
}

// finish completes the lifecycle: it makes the instance run, unless it is being
// deleted, then deletes it and checks that nothing is left.
func finish(t *testing.T, s *shard) {
	t.Helper()
	ctx := t.Context()
	if err := s.Adopt(ctx); err != nil {
		t.Errorf("Adopt returns %v", err)
	}
	if i, exists := s.Get(testRecord.ID); exists && i.DeletedAt.IsZero() {
		if i.State == instance.Pending {
			s.cloud.show(t, vmOf(testRecord, instance.Running))
		}
		if vm, known := s.cloud.Get(testRecord.ID); known {
			require.NoError(s.t, s.SetProviderID(ctx, testRecord.ID, vm.ProviderID))
			want := testRecord
			want.ProviderID = vm.ProviderID
			if stored := s.stored(testRecord); stored.ProviderID != want.ProviderID || stored.InfraConfigHash != want.InfraConfigHash || !stored.CreatedAt.Equal(want.CreatedAt) {
				t.Errorf("stored is %+v, want %+v", stored, want)
			}
			assert.Equal(t, []string{testRecord.ID}, s.cloud.ids(), "instances of the cloud")
		}
		require.NoError(s.t, s.SetDeleting(ctx, testRecord.ID, instance.ReasonExpired))
		s.cloud.remove(t, testRecord.ID)
		require.NoError(s.t, s.Remove(ctx, testRecord.ID))
		if err := s.Add(ctx, testRecord); !errors.Is(err, instancestore.ErrExists) {
			t.Errorf("using the id again: %v", err)
		}
	}
	if ids, records, list := s.cloud.ids(), s.records(), s.List(group); len(ids)+len(records)+len(list) != 0 {
		t.Errorf("the cloud still has %v, the storage the records %v, the store the instances %v", ids, records, list)
	}
}
