// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/puidv7"
)

// Deleted is not a state of instances. Await waits until the instance is not listed.
const Deleted instance.State = -1

// Ended is no state of instances either. Await waits until the instance is not listed, or
// nothing runs on it any more: some clouds show for a while that they have terminated a machine.
const Ended instance.State = -2

// awaitTimeout is much longer than any provider takes. In a bubble of synctest it passes
// at once.
const awaitTimeout = time.Hour

// Harness runs a provider and records its reports.
type Harness struct {
	provider.Provider
	// Leads is false when call contexts are done.
	Leads *atomic.Bool
	// Changes and Failures have the changes and failures that the provider has reported.
	Changes  chan instance.GroupKey
	Failures chan Failure
	// Stop returns when the provider has stopped. It may be called again.
	Stop func()

	t *testing.T
	// requested are the specs of MustCreate by instance id.
	requested map[string]provider.Spec
}

// Failure is a failed request that a provider has reported.
type Failure struct {
	Group instance.GroupKey
	ID    string
	Err   error
}

// Start runs the provider that newProvider returns and waits until it is synced.
// It stops with the test.
func Start(t *testing.T, newProvider func(provider.CallContextFunc) provider.Provider) *Harness {
	t.Helper()
	leads := new(atomic.Bool)
	leads.Store(true)
	p := newProvider(func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		if !leads.Load() {
			cancel()
		}
		return ctx, cancel
	})
	ctx, cancel := context.WithCancel(t.Context())
	h := &Harness{Provider: p, Leads: leads, Changes: make(chan instance.GroupKey, 1000), Failures: make(chan Failure, 1000), t: t, requested: map[string]provider.Spec{}}
	var running sync.WaitGroup
	running.Go(func() {
		changed := func(key instance.GroupKey) { report(ctx, h.Changes, key) }
		failed := func(key instance.GroupKey, id string, err error) {
			report(ctx, h.Failures, Failure{key, id, err})
		}
		assert.NoError(t, p.Run(ctx, changed, failed))
	})
	h.Stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(h.Stop)
	select {
	case <-p.Synced():
	case <-time.After(awaitTimeout):
		t.Fatalf("the provider has not listed its instances after %v", awaitTimeout)
	}
	return h
}

// report sends a report to the test. If the test does not read its reports, the provider
// waits, and can be stopped nevertheless.
func report[T any](ctx context.Context, reports chan<- T, value T) {
	select {
	case reports <- value:
	case <-ctx.Done():
	}
}

// Discard drops the reports that the test has not read.
func (h *Harness) Discard() {
	for {
		select {
		case <-h.Changes:
		case <-h.Failures:
		default:
			return
		}
	}
}

// NewID returns a new instance id.
func NewID(t *testing.T) string {
	t.Helper()
	id, err := puidv7.New("knd")
	require.NoError(t, err)
	return id.String()
}

// MustCreate requests an instance, with a new id unless the spec has one, and
// returns its id.
func (h *Harness) MustCreate(spec provider.Spec) string {
	h.t.Helper()
	if spec.ID == "" {
		spec.ID = NewID(h.t)
	}
	require.NoError(h.t, h.Create(h.t.Context(), spec))
	h.requested[spec.ID] = spec
	return spec.ID
}

// MustRun calls MustCreate and waits until the instance runs.
func (h *Harness) MustRun(spec provider.Spec) string {
	h.t.Helper()
	id := h.MustCreate(spec)
	h.Await(spec.Group, map[string]instance.State{id: instance.Running})
	return id
}

// MustDelete requests that an instance is deleted.
func (h *Harness) MustDelete(id string) {
	h.t.Helper()
	require.NoError(h.t, h.Delete(h.t.Context(), id))
}

// States returns the states of a group's instances.
func (h *Harness) States(key instance.GroupKey) map[string]instance.State {
	states := map[string]instance.State{}
	for _, vm := range h.List(key) {
		states[vm.ID] = vm.State
	}
	return states
}

// Await waits until a group has the instances in want, among others. It looks
// again only after a reported change. Like the reconciler, it requests an instance again that must
// run and whose request the provider has given back.
func (h *Harness) Await(key instance.GroupKey, want map[string]instance.State) {
	h.t.Helper()
	timeout := time.After(awaitTimeout)
	for {
		states := h.States(key)
		current := maps.Clone(want)
		for id := range want {
			state, listed := states[id]
			switch {
			case want[id] == Ended && (!listed || state.Down()):
				current[id] = Ended
			case listed:
				current[id] = state
			default:
				current[id] = Deleted
				if spec, requested := h.requested[id]; requested && want[id] == instance.Running {
					// The provider may reject it for a while.
					_ = h.Create(h.t.Context(), spec)
				}
			}
		}
		if maps.Equal(current, want) {
			return
		}
		select {
		case <-h.Changes:
		case <-timeout:
			h.t.Fatalf("after %v the instances are %v, want %v", awaitTimeout, states, want)
		}
	}
}

// DrainChanges discards the reported changes.
func (h *Harness) DrainChanges() {
	for len(h.Changes) > 0 {
		<-h.Changes
	}
}

// ExpectFailures expects that a number of failures were reported, all for one
// instance, and discards them. It returns their errors.
func (h *Harness) ExpectFailures(times int, group instance.GroupKey, id string) []error {
	h.t.Helper()
	assert.Len(h.t, h.Failures, times, "failures")
	var errs []error
	for len(h.Failures) > 0 {
		f := <-h.Failures
		if f.Group != group || f.ID != id {
			h.t.Errorf("a failure of %s of %s was reported, want %s of %s: %v", f.ID, f.Group, id, group, f.Err)
		}
		errs = append(errs, f.Err)
	}
	return errs
}

// Instances is a provider whose instances a test sets. If a test needs other methods, it
// embeds Instances and implements them.
type Instances struct {
	provider.Provider

	// SyncedCh is the channel that Synced returns. It is closed.
	SyncedCh chan struct{}
	// Mu guards VMs, which has the instances by id, and Gets, the number of calls of Get.
	Mu   sync.Mutex
	VMs  map[string]instance.VM
	Gets int
}

// NewInstances returns a provider without instances.
func NewInstances() *Instances {
	i := &Instances{SyncedCh: make(chan struct{}), VMs: map[string]instance.VM{}}
	close(i.SyncedCh)
	return i
}

// Put creates or changes an instance.
func (i *Instances) Put(vm instance.VM) {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	i.VMs[vm.ID] = vm
}

// Remove deletes an instance.
func (i *Instances) Remove(id string) {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	delete(i.VMs, id)
}

// Synced returns SyncedCh.
func (i *Instances) Synced() <-chan struct{} { return i.SyncedCh }

// Get returns an instance.
func (i *Instances) Get(id string) (instance.VM, bool) {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	i.Gets++
	vm, known := i.VMs[id]
	return vm, known
}

// List returns the instances of a group.
func (i *Instances) List(group instance.GroupKey) []instance.VM {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	vms := slices.Collect(maps.Values(i.VMs))
	return slices.DeleteFunc(vms, func(vm instance.VM) bool { return vm.Group != group })
}

// Groups returns the groups of the instances.
func (i *Instances) Groups() []instance.GroupKey {
	i.Mu.Lock()
	defer i.Mu.Unlock()
	groups := map[instance.GroupKey]struct{}{}
	for _, vm := range i.VMs {
		groups[vm.Group] = struct{}{}
	}
	return slices.Collect(maps.Keys(groups))
}

// ExpectedNode returns nil, because the Nodes are not known in advance.
func (*Instances) ExpectedNode(provider.Spec) *corev1.Node { return nil }
