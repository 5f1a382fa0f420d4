// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package loadbalancers

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/testing/tier"
)

// TestWalk changes instances, group, configuration and leader at random, while calls fail and
// responses are lost. No instance is registered before its first good report, or may be
// terminated while a load balancer has it as a target. In the end the targets are the wanted
// targets.
func TestWalk(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(20, 100)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { walk(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func walk(t *testing.T, random *rand.Rand) {
	w := newWorld(t)
	good := map[string]bool{}
	rate := 0
	w.balancer.Called = func(operation, endpoint string, ids []string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, id := range ids {
			if operation == "register" && !good[id] {
				t.Errorf("instance %s is registered with %s before its first good report", id, endpoint)
			}
		}
		if random.IntN(100) < rate {
			return providertest.ErrUnavailable
		}
		return nil
	}
	w.balancer.Put("web", provider.Target{ProviderID: "other"})
	w.lead()
	set := func(id string, change func(*instance.Instance)) {
		w.set(id, change)
		w.mu.Lock()
		defer w.mu.Unlock()
		i := w.instances[id]
		good[id] = good[id] || i.State == instance.Running && i.Agent.State == instance.AgentReporting
	}
	freed := 0
	for step := range 400 {
		id := fmt.Sprint("i", random.IntN(8)+step/50)
		i, found := w.Get(id)
		switch random.IntN(14) {
		case 0, 1, 2:
			if !found || i.State == instance.Pending {
				set(id, []func(*instance.Instance){booting, registered, reporting}[random.IntN(3)])
			} else if !i.BeingDeleted() && i.DeletedAt.IsZero() {
				set(id, reporting)
			}
		case 3:
			if found && good[id] && !i.BeingDeleted() {
				set(id, []func(*instance.Instance){lost, missing}[random.IntN(2)])
			}
		case 4, 5:
			if found && !i.BeingDeleted() {
				set(id, draining)
			}
		case 6, 7:
			// This is the reconciler's part.
			if found && i.Drain != nil && i.DeletedAt.IsZero() && !w.waits(id) {
				for _, endpoint := range w.balancer.Endpoints {
					assert.NotContains(t, w.balancer.States(endpoint), id, "step %d: an instance that does not wait", step)
				}
				freed++
				set(id, func(i *instance.Instance) { i.DeletedAt = time.Now() })
			}
		case 8:
			w.mu.Lock()
			w.wanted = [][]string{{"web"}, {"api"}, {"web", "api"}, nil}[random.IntN(4)]
			w.mu.Unlock()
		case 9:
			rate = []int{0, 0, 20, 100}[random.IntN(4)]
		case 10:
			w.balancer.LoseResponses(random.IntN(3))
		case 11:
			// The leader changes, or begins anew. It does not know the earlier configuration.
			w.configure("web", "api")
			w.lead()
		case 12:
			w.balancer.Remove("web", id)
		case 13:
			w.setEntries([]entries{
				{"web": {"web"}},
				{"web": {"web"}, "api": {"api"}},
				{"web": {"web", "api"}, "api": {"api"}},
				{"web": {"api"}, "api": {"web"}},
			}[random.IntN(4)])
		}
		if _, found := (worldGroups{w}).Config().LoadBalancers["api"]; !found && slices.Contains(w.wantedNow(), "api") {
			w.configure("web", "api")
		}
		w.pass(time.Duration(random.IntN(60)) * time.Second)
	}
	assert.Positive(t, freed, "instances that did not wait any longer")

	rate = 0
	w.balancer.LoseResponses(0)
	w.configure("web", "api")
	w.wanted = []string{"web"}
	w.pass(time.Hour)
	want := targetStates{"other": provider.Registered}
	w.mu.Lock()
	for id, i := range w.instances {
		if i.DeletedAt.IsZero() && !i.BeingDeleted() && w.syncer.isGood(&i) {
			want[id] = provider.Registered
		}
	}
	w.mu.Unlock()
	got := w.balancer.States("web")
	for id := range maps.Clone(got) {
		// An instance that is not healthy keeps its registration.
		if i, found := w.Get(id); found && !i.BeingDeleted() && i.DeletedAt.IsZero() && !w.syncer.isGood(&i) {
			delete(got, id)
		}
	}
	require.Equal(t, want, got)
	require.Empty(t, w.balancer.States("api"))
	w.stop()
}

// wantedNow returns the load balancers of the group.
func (w *world) wantedNow() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wanted
}
