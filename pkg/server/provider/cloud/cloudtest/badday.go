// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloudtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// BadDay is a day on which the cloud refuses the launches of one group.
type BadDay struct {
	// Start starts the provider.
	Start func() *providertest.Harness
	// Refused and Other are requests without an id for the group whose launches are refused, and for
	// another group.
	Refused, Other provider.Spec
	// Begin begins the day.
	Begin func()
	// Terminations returns how many machines were terminated so far.
	Terminations func() int
}

const (
	// badDay is how long the day is.
	badDay = 30 * time.Minute
	// launchPace is the time between two launches of the other group.
	launchPace = 5 * time.Minute
	// pollSlack is how much later a list may show that a machine runs.
	pollSlack = 5 * time.Second
)

// Test expects that no healthy machine is terminated, and that no launch of the other group waits.
// The refused group is requested again every second.
func (d BadDay) Test(t *testing.T) {
	t.Helper()
	h := d.Start()
	want := map[instance.GroupKey]map[string]instance.State{d.Refused.Group: {}, d.Other.Group: {}}
	run := func(spec provider.Spec) time.Duration {
		began := time.Now()
		want[spec.Group][h.MustRun(spec)] = instance.Running
		return time.Since(began)
	}
	var usual time.Duration
	for range 5 {
		usual = max(usual, run(d.Refused), run(d.Other))
		time.Sleep(7 * time.Second)
	}
	d.Begin()
	refused := d.Refused
	refused.ID = providertest.NewID(t)
	attempts, rejections := 0, 0
	next := time.Now()
	for began := time.Now(); time.Since(began) < badDay; time.Sleep(time.Second) {
		attempts++
		if err := h.Create(t.Context(), refused); err != nil {
			rejections++
		}
		if !time.Now().Before(next) {
			next = time.Now().Add(launchPace)
			if took := run(d.Other); took > usual+pollSlack {
				t.Errorf("a launch of another group took %s, usually it takes %s", took, usual)
			}
		}
		h.DrainChanges()
	}
	for len(h.Failures) > 0 {
		failure := <-h.Failures
		assert.Equal(t, refused.ID, failure.ID, "a failure of another instance: %v", failure.Err)
	}
	require.Positive(t, rejections, "of %d attempts", attempts)
	assert.NotEqual(t, instance.Running, h.States(d.Refused.Group)[refused.ID])
	assert.Zero(t, d.Terminations(), "terminated machines")
	for key, instances := range want {
		states := h.States(key)
		for id, state := range instances {
			assert.Equal(t, state, states[id], "instance %s of %s", id, key)
		}
	}
}
