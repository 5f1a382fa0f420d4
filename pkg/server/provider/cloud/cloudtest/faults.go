// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloudtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// Operation is a call of cloud.API.
type Operation string

// Operations that can fail and are counted.
const (
	Launch    Operation = "launch"
	Terminate Operation = "terminate"
	List      Operation = "list"
	Find      Operation = "find"
)

var (
	errUnavailable = errors.New("the cloud is not available")
	errLost        = errors.New("the connection was lost")
)

// Faults makes the calls to a cloud fail. One Faults may wrap the APIs of several shards
// and processes.
type Faults struct {
	mu sync.Mutex
	// calls counts the calls since the last Count. Throttled launches and terminations do not
	// count.
	calls map[Operation]int
	// terminations are the instance ids of all calls of Terminate.
	terminations [][]string
	failures     map[Operation]int
	lost         map[Operation]int
	emptyLists   int
	throttled    time.Time
	// behind is until when lists and terminations do not know the VMs.
	behind   time.Time
	delay    time.Duration
	launched map[string]time.Time
	// findTime is how long a call of Find takes.
	findTime time.Duration
}

// NewFaults returns Faults with which all calls succeed.
func NewFaults() *Faults {
	return &Faults{calls: map[Operation]int{}, failures: map[Operation]int{}, lost: map[Operation]int{}, launched: map[string]time.Time{}}
}

// Wrap returns an API that calls api, and fails as configured by the methods of f.
func (f *Faults) Wrap(api cloud.API) cloud.API { return faulty{f, api} }

// Fail makes the next calls of an operation fail without an effect. A list fails as if a part
// of it could not be read.
func (f *Faults) Fail(operation Operation, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures[operation] = times
}

// LoseResponses makes the next calls of an operation fail after they had their effect.
func (f *Faults) LoseResponses(operation Operation, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost[operation] = times
}

// EmptyLists makes the next lists empty, without an error.
func (f *Faults) EmptyLists(times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.emptyLists = times
}

// Throttle rejects all calls for a time.
func (f *Faults) Throttle(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.throttled = time.Now().Add(d)
}

// FallBehind makes lists and terminations know no VMs for a time, like a replica that lags
// behind. Find still reads the VMs.
func (f *Faults) FallBehind(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = time.Now().Add(d)
}

// DelayVisibility hides machines for a time after their launch: they are not found, and
// Terminate does not know them.
func (f *Faults) DelayVisibility(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// SlowFinds makes each call of Find take a time.
func (f *Faults) SlowFinds(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.findTime = d
}

// Count returns how many calls of an operation there were since the last time.
func (f *Faults) Count(operation Operation) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls[operation]
	f.calls[operation] = 0
	return calls
}

// Terminations returns the instance ids of each call of Terminate.
func (f *Faults) Terminations() [][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.terminations)
}

// before returns the error of a call that fails before it has an effect.
func (f *Faults) before(operation Operation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Now().Before(f.throttled) {
		return fmt.Errorf("%s: %w", operation, cloud.ErrThrottled)
	}
	f.calls[operation]++
	if f.failures[operation] > 0 {
		f.failures[operation]--
		return fmt.Errorf("%s: %w", operation, errUnavailable)
	}
	return nil
}

// after returns the error of a call whose response is lost.
func (f *Faults) after(operation Operation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost[operation] > 0 {
		f.lost[operation]--
		return fmt.Errorf("%s: %w", operation, errLost)
	}
	return nil
}

// hidden reports whether a machine is not visible yet.
func (f *Faults) hidden(vm cloud.VM) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, known := f.launched[vm.ProviderID]
	return known && time.Since(at) < f.delay
}

type faulty struct {
	*Faults
	api cloud.API
}

// Launch implements cloud.API.
func (f faulty) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	if err := f.before(Launch); err != nil {
		return cloud.VM{}, err
	}
	vm, err := f.api.Launch(ctx, r)
	if err != nil {
		return vm, err
	}
	f.mu.Lock()
	if _, known := f.launched[vm.ProviderID]; !known {
		f.launched[vm.ProviderID] = time.Now()
	}
	f.mu.Unlock()
	if err := f.after(Launch); err != nil {
		return cloud.VM{}, err
	}
	return vm, nil
}

// Terminate implements cloud.API.
func (f faulty) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	var ids []string
	for _, vm := range list {
		ids = append(ids, vm.ID)
	}
	fail := func(err error) map[string]error {
		errs := map[string]error{}
		for _, id := range ids {
			errs[id] = err
		}
		return errs
	}
	if err := f.before(Terminate); err != nil {
		return fail(err)
	}
	f.mu.Lock()
	f.terminations = append(f.terminations, ids)
	behind := time.Now().Before(f.behind)
	f.mu.Unlock()
	if behind {
		return fail(cloud.ErrNotFound)
	}
	visible := slices.DeleteFunc(slices.Clone(list), f.hidden)
	errs := f.api.Terminate(ctx, visible)
	if err := f.after(Terminate); err != nil {
		return fail(err)
	}
	for _, vm := range list {
		if f.hidden(vm) {
			errs[vm.ID] = cloud.ErrNotFound
		}
	}
	return errs
}

// List implements cloud.API.
func (f faulty) List(ctx context.Context) ([]cloud.VM, error) {
	if err := f.before(List); err != nil {
		return nil, err
	}
	f.mu.Lock()
	empty := f.emptyLists > 0
	if empty {
		f.emptyLists--
	}
	empty = empty || time.Now().Before(f.behind)
	f.mu.Unlock()
	if empty {
		return nil, nil
	}
	list, err := f.api.List(ctx)
	return slices.DeleteFunc(list, f.hidden), err
}

// Find implements cloud.API.
func (f faulty) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	f.mu.Lock()
	findTime := f.findTime
	f.mu.Unlock()
	time.Sleep(findTime)
	if err := f.before(Find); err != nil {
		return cloud.VM{}, false, err
	}
	vm, found, err := f.api.Find(ctx, id)
	if err != nil || !found || f.hidden(vm) {
		return cloud.VM{}, false, err
	}
	return vm, true, nil
}

// Room implements cloud.API.
func (f faulty) Room(ctx context.Context, subnet string) (int, error) { return f.api.Room(ctx, subnet) }

// Limits implements cloud.API. Its VisibilityDelay includes the configured delay.
func (f faulty) Limits() cloud.Limits {
	limits := f.api.Limits()
	f.mu.Lock()
	defer f.mu.Unlock()
	limits.VisibilityDelay = max(limits.VisibilityDelay, f.delay)
	return limits
}

// Outage configures a test with an outage of ten minutes: the cloud does not respond, or
// responds wrongly. It runs in a bubble of synctest.
type Outage struct {
	// Start starts the provider.
	Start func() *providertest.Harness
	// Spec is the spec of the instances, without an id.
	Spec provider.Spec
	// Begin and End begin and end the outage.
	Begin, End func()
	// Delete deletes the machine of an instance, like another client.
	Delete func(id string)
	// Calls returns the numbers of calls since the last time. IsRead reports whether a call
	// changes nothing.
	Calls  func() map[string]int
	IsRead func(call string) bool
	// Made returns how many machines were ever created.
	Made func() int
}

// Test tests that no instance changes its state or is terminated during an outage. Afterwards
// an instance whose VM has vanished must be missing, and the provider must create instances
// again.
func (o Outage) Test(t *testing.T) {
	h := o.Start()
	want := map[string]instance.State{}
	for range 5 {
		want[h.MustRun(o.Spec)] = instance.Running
	}
	time.Sleep(5 * time.Minute)
	// An outage that begins or ends in steps does so between two polls.
	synctest.Wait()
	h.DrainChanges()
	o.Calls()

	o.Begin()
	for range 60 {
		assert.Equal(t, want, h.States(workers))
		time.Sleep(10 * time.Second)
	}
	assert.Empty(t, h.Changes, "changes")
	synctest.Wait()
	vanished := slices.Sorted(maps.Keys(want))[0]
	o.Delete(vanished)
	o.End()
	h.Await(workers, map[string]instance.State{vanished: providertest.Ended})
	for call, count := range o.Calls() {
		assert.True(t, o.IsRead(call), "%d calls %s", count, call)
	}
	h.MustDelete(vanished)
	delete(want, vanished)
	assert.Equal(t, want, h.States(workers))
	h.MustRun(o.Spec)
	assert.Equal(t, 6, o.Made(), "machines")
}
