// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instances_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instances"
)

// Environment of a child process that is to crash.
const (
	crashDir  = "NSTANCE_TEST_CRASH_DIR"
	crashStep = "NSTANCE_TEST_CRASH_STEP"
)

// life is the only instance of the crash tests. Its id is fixed, so that parent
// and child mean the same.
var life = instance.Record{
	ID: "knc06bgm7733st2576nx5jht4ecjw", Tenant: group.Tenant, Group: group.Group,
	InfraConfigHash: "sha256:1", CreatedAt: epoch,
}

var lifeDrain = instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch.Add(5 * time.Minute)}

// live is the whole life of an instance. It calls reach at every step at which a
// process can end, with what has been done by then.
func live(s *shard, reach func(step string)) {
	ctx := s.t.Context()
	s.storage.intervene(nil, func(method, _ string) error {
		// The object is written, the row is not.
		reach(method)
		return nil
	})
	reach("nothing")
	s.must(s.Add(ctx, life))
	reach("record and row")
	s.cloud.show(s.t, vmOf(life, instance.Running))
	reach("ordered")
	s.must(s.SetProviderID(ctx, life.ID, "cloud:///"+life.ID))
	reach("provider id in the row")
	s.must(s.StartDrain(ctx, life.ID, lifeDrain))
	reach("draining")
	s.must(s.Acknowledge(ctx, life.ID))
	reach("acknowledged")
	s.must(s.SetDeleting(ctx, life.ID, instance.ReasonExpired))
	reach("deleting")
	s.cloud.end(s.t, life.ID)
	reach("ended")
	s.must(s.Remove(ctx, life.ID))
	reach("removed")
}

// TestCrashingChild is the process that ends: by itself, but like by kill -9.
func TestCrashingChild(t *testing.T) {
	step := os.Getenv(crashStep)
	if step == "" {
		t.Skip("is run by TestCrash")
	}
	s := newShard(t, os.Getenv(crashDir))
	live(s, func(reached string) {
		if reached == step {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			select {}
		}
	})
	t.Fatalf("no step is %q", step)
}

// found is what a server finds when it starts.
type found struct {
	// there and gone: neither, when nothing is known.
	there, gone bool
	state       instance.State
	known       bool
	providerID  bool
	// drain, acknowledged and deleting are the decisions.
	drain, acknowledged, deleting bool
}

func find(s *shard) found {
	i, there := s.Get(life.ID)
	if !there {
		return found{}
	}
	f := found{
		there: i.DeletedAt.IsZero(), gone: !i.DeletedAt.IsZero(),
		state: i.State, known: i.Known, providerID: i.ProviderID != "",
		drain: i.Drain != nil, deleting: i.DeleteReason != "",
	}
	f.acknowledged = f.drain && i.Drain.Acknowledged
	return f
}

// withoutDecisions is what is left of f without the cache.
func (f found) withoutDecisions() found {
	if f.gone {
		return found{}
	}
	f.drain, f.acknowledged, f.deleting = false, false, false
	return f
}

// TestCrash ends a server at every step of an instance's life, and starts another
// one with the cache that is left, without one and with a damaged one.
func TestCrash(t *testing.T) {
	running := found{there: true, state: instance.Running, known: true, providerID: true}
	with := func(f found, edit func(*found)) found {
		edit(&f)
		return f
	}
	steps := []struct {
		step string
		want found
	}{
		// No instance was made, and its id is never used.
		{"nothing", found{}},
		// It has to be ordered, or is given up after a while.
		{"Create", found{there: true, state: instance.Pending}},
		{"record and row", found{there: true, state: instance.Pending}},
		// The provider tells the id that the record lacks.
		{"ordered", found{there: true, state: instance.Running, known: true}},
		{"Replace", running},
		{"provider id in the row", running},
		{"draining", with(running, func(f *found) { f.drain = true })},
		{"acknowledged", with(running, func(f *found) { f.drain, f.acknowledged = true, true })},
		{"deleting", with(running, func(f *found) { f.drain, f.acknowledged, f.deleting = true, true, true })},
		{"ended", found{there: true, state: instance.Missing, providerID: true, drain: true, acknowledged: true, deleting: true}},
		{"Delete", found{gone: true, state: instance.Missing, providerID: true, drain: true, acknowledged: true, deleting: true}},
		{"removed", found{gone: true, state: instance.Missing, providerID: true, drain: true, acknowledged: true, deleting: true}},
	}
	caches := []struct {
		name string
		harm func(*testing.T, string)
		kept bool
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
			// The log too, or else SQLite repairs the file.
			for _, suffix := range []string{"", "-wal"} {
				if err := os.WriteFile(path+suffix, []byte("what a broken disk may give back"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}, false},
	}
	for _, step := range steps {
		// One child for all three: what it leaves is copied.
		left := t.TempDir()
		crash(t, left, step.step)
		for _, c := range caches {
			t.Run(fmt.Sprintf("%s, cache %s", step.step, c.name), func(t *testing.T) {
				dir := t.TempDir()
				if err := os.CopyFS(dir, os.DirFS(left)); err != nil {
					t.Fatal(err)
				}
				c.harm(t, filepath.Join(dir, "cache.db"))
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

// crash runs a child until it ends at a step.
func crash(t *testing.T, dir, step string) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrashingChild$")
	child.Env = append(os.Environ(), crashDir+"="+dir, crashStep+"="+step)
	output, err := child.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v:\n%s", err, output)
	}
}

// finish does what is left to do, first so that the instance runs, if it is not
// to go yet, and then so that it is gone. Then nothing may be left of it.
func finish(t *testing.T, s *shard) {
	t.Helper()
	ctx := t.Context()
	if returned, err := s.Adopt(ctx); err != nil || len(returned) != 0 {
		t.Errorf("adopting gives %v, %v, want nothing", returned, err)
	}
	if i, there := s.Get(life.ID); there && i.DeletedAt.IsZero() {
		if i.State == instance.Pending {
			s.cloud.show(t, vmOf(life, instance.Running))
		}
		if vm, known := s.cloud.Get(life.ID); known {
			s.must(s.SetProviderID(ctx, life.ID, vm.ProviderID))
			want := life
			want.ProviderID = vm.ProviderID
			if stored := s.stored(life); stored.ProviderID != want.ProviderID || stored.InfraConfigHash != want.InfraConfigHash || !stored.CreatedAt.Equal(want.CreatedAt) {
				t.Errorf("stored is %+v, want %+v", stored, want)
			}
			if ids := s.cloud.ids(); !slices.Equal(ids, []string{life.ID}) {
				t.Errorf("the cloud has %v", ids)
			}
		}
		s.must(s.SetDeleting(ctx, life.ID, instance.ReasonExpired))
		s.cloud.end(t, life.ID)
		s.must(s.Remove(ctx, life.ID))
		if err := s.Add(ctx, life); !errors.Is(err, instances.ErrExists) {
			t.Errorf("using the id again: %v", err)
		}
	}
	if ids, records, list := s.cloud.ids(), s.records(), s.List(group); len(ids)+len(records)+len(list) != 0 {
		t.Errorf("left are %v in the cloud, the records %v and the instances %v", ids, records, list)
	}
}
