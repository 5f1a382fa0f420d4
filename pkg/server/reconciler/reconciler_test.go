// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// wishes are sizes by group. A group that is not there has been removed.
type wishes struct {
	mu    sync.Mutex
	sizes map[instance.GroupKey]int32
}

func (w *wishes) Get(key instance.GroupKey) (*groups.Group, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	size, found := w.sizes[key]
	return &groups.Group{Key: key, Kind: "knd", Size: size, InstanceType: "m7i.large"}, found
}

func (w *wishes) set(key instance.GroupKey, size int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sizes[key] = size
}

func (w *wishes) remove(key instance.GroupKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sizes, key)
}

// cloud is a provider that the test moves on: instances stay pending, or on
// their way out, until settle.
type cloud struct {
	mu        sync.Mutex
	instances map[string]instance.Instance
	// failures is how many calls fail before one succeeds.
	failures int
	calls    []string
	// moved has an entry after every call.
	moved chan struct{}
}

var _ instance.Provider = (*cloud)(nil)

func newCloud() *cloud {
	return &cloud{instances: map[string]instance.Instance{}, moved: make(chan struct{}, 1)}
}

func (c *cloud) Run(context.Context, func(instance.GroupKey)) error { return nil }
func (c *cloud) Synced() <-chan struct{}                            { return nil }

func (c *cloud) List(group instance.GroupKey) []instance.Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []instance.Instance
	for _, i := range c.instances {
		if i.Group == group {
			list = append(list, i)
		}
	}
	return list
}

func (c *cloud) Create(_ context.Context, spec instance.Spec) error {
	return c.call("create "+spec.Group.String(), func() {
		c.instances[spec.ID] = instance.Instance{ID: spec.ID, Group: spec.Group, CreatedAt: time.Now()}
	})
}

func (c *cloud) Delete(_ context.Context, id string) error {
	c.mu.Lock()
	i := c.instances[id]
	c.mu.Unlock()
	return c.call("delete "+i.Group.String(), func() {
		i.State = instance.Terminating
		c.instances[id] = i
	})
}

func (c *cloud) call(name string, do func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, name)
	select {
	case c.moved <- struct{}{}:
	default:
	}
	if c.failures > 0 {
		c.failures--
		return errors.New("the cloud is busy")
	}
	do()
	return nil
}

// settle starts what is pending and removes what is on its way out.
func (c *cloud) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, i := range c.instances {
		switch i.State {
		case instance.Pending:
			i.State = instance.Running
			c.instances[id] = i
		case instance.Terminating:
			delete(c.instances, id)
		}
	}
}

// lose removes any one instance behind the reconciler's back.
func (c *cloud) lose(random *rand.Rand) (instance.GroupKey, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := slices.Sorted(maps.Keys(c.instances))
	if len(ids) == 0 {
		return instance.GroupKey{}, false
	}
	id := ids[random.IntN(len(ids))]
	group := c.instances[id].Group
	delete(c.instances, id)
	return group, true
}

func (c *cloud) fail(times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = times
}

// takeCalls returns the calls since it was called last.
func (c *cloud) takeCalls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

// staying returns how many instances of a group are not on their way out.
func (c *cloud) staying(group instance.GroupKey) int {
	staying := 0
	for _, i := range c.List(group) {
		if i.State != instance.Terminating {
			staying++
		}
	}
	return staying
}

// await returns when group has size instances. In a bubble of synctest, time
// goes on as far as that needs.
func (c *cloud) await(group instance.GroupKey, size int) {
	for c.staying(group) != size {
		<-c.moved
	}
}

// start runs a reconciler until the returned function is called.
func start(t *testing.T, w *wishes, c *cloud) (*Reconciler, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := New(w, c)
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

		// What went wrong before is forgotten: the wait is the shortest again.
		w.set(slow, 1)
		c.fail(1)
		before = time.Now()
		r.Enqueue(slow)
		c.await(slow, 1)
		if took := time.Since(before); took != retryAfter {
			t.Errorf("took %v, want %v", took, retryAfter)
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
