// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloudtest

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// Outage is one of ten minutes, in which a cloud does not respond, or wrongly. It runs in a
// bubble of synctest.
type Outage struct {
	// Start starts the provider.
	Start func() *providertest.Harness
	// Spec is that of the instances, without an id.
	Spec provider.Spec
	// Begin and End begin and end the outage.
	Begin, End func()
	// Delete deletes the machine of an instance, like another client.
	Delete func(id string)
	// Calls returns how many calls there were since the last time, and IsRead reports
	// whether one changes nothing.
	Calls  func() map[string]int
	IsRead func(call string) bool
	// Made returns how many machines were ever created.
	Made func() int
}

// Test tests that no instance changes its state and none is terminated, that afterwards one
// that has really vanished is missing, and that the provider creates instances again.
func (o Outage) Test(t *testing.T) {
	h := o.Start()
	want := map[string]instance.State{}
	for range 5 {
		want[h.MustRun(o.Spec)] = instance.Running
	}
	time.Sleep(5 * time.Minute)
	h.DrainChanges()
	o.Calls()

	o.Begin()
	for range 60 {
		assert.Equal(t, want, h.States(workers))
		time.Sleep(10 * time.Second)
	}
	assert.Empty(t, h.Changes, "changes")
	vanished := slices.Sorted(maps.Keys(want))[0]
	o.Delete(vanished)
	o.End()
	h.Await(workers, map[string]instance.State{vanished: providertest.Deleted})
	delete(want, vanished)
	assert.Equal(t, want, h.States(workers))
	for call, count := range o.Calls() {
		assert.True(t, o.IsRead(call), "%d calls %s", count, call)
	}
	h.MustRun(o.Spec)
	assert.Equal(t, 6, o.Made(), "machines")
}
