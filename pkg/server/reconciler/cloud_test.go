// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
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
	return &groups.Group{Key: key, Kind: "knd", Size: size, InstanceType: "m7i.large", Type: instance.Type{Name: "m7i.large"}}, found
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
	// told is what the reconciler told of failures.
	told []string
	// moved has an entry after every call.
	moved chan struct{}
}

var _ instance.Provider = (*cloud)(nil)

func newCloud() *cloud {
	return &cloud{instances: map[string]instance.Instance{}, moved: make(chan struct{}, 1)}
}

func (c *cloud) Run(context.Context, func(instance.GroupKey), instance.FailureFunc) error { return nil }
func (c *cloud) Synced() <-chan struct{}                                                  { return nil }

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

func (c *cloud) failed(group instance.GroupKey, id string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, group.String()+" "+id+" "+err.Error())
}

// takeFailures returns what was told of failures since it was called last.
func (c *cloud) takeFailures() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := c.told
	c.told = nil
	return told
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
