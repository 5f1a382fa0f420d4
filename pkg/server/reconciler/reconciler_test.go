// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// start runs a reconciler until the returned function is called.
func start(t *testing.T, w *wishes, c *cloud) (*Reconciler, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := New(w, c, c.failed)
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	return r, func() {
		cancel()
		running.Wait()
	}
}

// TestRandomWalk changes one thing at a time and lets the reconciler finish.
// Each time every group must have its size, with no call too many and none for
// another group.
func TestRandomWalk(t *testing.T) {
	keys := []instance.GroupKey{{Tenant: "a", Group: "x"}, {Tenant: "a", Group: "y"}, {Tenant: "b", Group: "x"}}
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				w := &wishes{sizes: map[instance.GroupKey]int32{}}
				c := newCloud()
				r, stop := start(t, w, c)
				for step := range 100 {
					key := keys[random.IntN(len(keys))]
					switch random.IntN(6) {
					case 0, 1:
						w.set(key, int32(random.IntN(7)))
					case 2:
						w.remove(key)
					case 3:
						c.settle()
					case 4:
						if group, lost := c.lose(random); lost {
							key = group
						}
					case 5:
						// All that a new process knows is what there is.
						stop()
						r, stop = start(t, w, c)
					}
					had := c.staying(key)
					for range random.IntN(3) {
						r.Enqueue(key)
					}
					r.Enqueue(key)
					synctest.Wait()

					group, found := w.Get(key)
					wanted := int(group.Size)
					if !found {
						wanted = 0
					}
					if got := c.staying(key); got != wanted {
						t.Fatalf("step %d: %s has %d instances, want %d", step, key, got, wanted)
					}
					calls := c.takeCalls()
					if want := max(wanted-had, had-wanted); len(calls) != want {
						t.Fatalf("step %d: %d calls from %d to %d instances: %q", step, len(calls), had, wanted, calls)
					}
					for _, call := range calls {
						if !strings.HasSuffix(call, " "+key.String()) {
							t.Fatalf("step %d: %s when only %s was told of", step, call, key)
						}
					}
				}
				stop()
			})
		})
	}
}

func TestErrorsAreRetriedAndDoNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wishes{sizes: map[instance.GroupKey]int32{}}
		c := newCloud()
		r, stop := start(t, w, c)
		defer stop()
		slow, other := instance.GroupKey{Tenant: "a", Group: "slow"}, instance.GroupKey{Tenant: "a", Group: "other"}

		c.fail(3)
		w.set(slow, 4)
		r.Enqueue(slow)
		synctest.Wait()
		if calls := c.takeCalls(); len(calls) != 1 {
			t.Errorf("made %q, want one call that fails", calls)
		}
		c.fail(0)
		w.set(other, 1)
		r.Enqueue(other)
		synctest.Wait()
		if c.staying(other) != 1 || c.staying(slow) != 0 {
			t.Errorf("%d of the other group and %d of the failing one, want 1 and 0", c.staying(other), c.staying(slow))
		}
		c.fail(2)
		before := time.Now()
		c.await(slow, 4)
		// 0.2 s, 0.4 s, 0.8 s
		if took := time.Since(before); took != 1400*time.Millisecond {
			t.Errorf("took %v", took)
		}
		if got := len(c.takeCalls()); got != 1+2+4 {
			t.Errorf("made %d calls, want one for the other group, two that fail and four", got)
		}
		want := []string{"a/slow  creating an instance: the cloud is busy"}
		if got := c.takeFailures(); !slices.Equal(got, slices.Repeat(want, 3)) {
			t.Errorf("told of %q, want three times %q", got, want)
		}

		// What went wrong before is forgotten: the wait is the shortest again.
		w.set(slow, 1)
		c.fail(1)
		before = time.Now()
		r.Enqueue(slow)
		c.await(slow, 1)
		if took := time.Since(before); took != retryAfter {
			t.Errorf("took %v, want %v", took, retryAfter)
		}
		// It names the instance, which is there.
		if got := c.takeFailures(); len(got) != 1 || !strings.HasPrefix(got[0], "a/slow knd") || !strings.HasSuffix(got[0], " deleting an instance: the cloud is busy") {
			t.Errorf("told of %q, want the deletion that failed", got)
		}
	})
}

// TestIdle lets an hour go by after all is done.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wishes{sizes: map[instance.GroupKey]int32{}}
		c := newCloud()
		r, stop := start(t, w, c)
		defer stop()
		key := instance.GroupKey{Tenant: "a", Group: "x"}
		w.set(key, 3)
		r.Enqueue(key)
		c.await(key, 3)
		c.takeCalls()
		synctest.Wait()
		select {
		case <-c.moved:
		default:
		}
		select {
		case <-time.After(time.Hour):
		case <-c.moved:
			t.Errorf("made calls: %q", c.takeCalls())
		}
	})
}
