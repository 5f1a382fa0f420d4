// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/stock"
	"nstance.dev/operator/pkg/testing/tier"
)

// candidateWalk is a random walk of a group with candidates over a cloud with random stock.
type candidateWalk struct {
	*server
	random      *rand.Rand
	list        []candidates.Candidate
	returnAfter time.Duration
	size        int
}

// TestCandidatesOfRandomStock changes size, candidates and stock at random, and kills the leader. The
// group reaches its size whenever any candidate has stock, no candidate gets more instances than its
// maximum, and nothing happens when nothing changes. In the end there is stock, and all instances are
// preferred.
func TestCandidatesOfRandomStock(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(12, 100)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				w := &candidateWalk{server: start(t, newMarketConfig()), random: random}
				w.cloud.market = newMarket(allModes[random.IntN(len(allModes))])
				w.choose()
				for step := range 15 {
					w.disturb()
					w.passWith(time.Minute, 25)
					if err := w.check(); err != nil {
						t.Fatalf("step %d: %v\n%s, candidates %s, stock %v, return after %v", step, err, w.cloud.market.mode, w.describe(), w.cloud.market.stock, w.returnAfter)
					}
				}
				w.limitStock(map[string]int{smallStandard: -1, smallSpot: -1, largeSpot: -1, largeStandard: -1})
				w.passWith(5*time.Minute, 100)
				w.takeCalls()
				w.passWith(10*time.Minute, 30)
				w.wantNothing(t)
				if w.returnAfter > 0 {
					w.wantPreferred(t)
				}
			})
		})
	}
}

func (w *candidateWalk) takeCalls() {
	w.cloud.takeCalls()
	w.drainReasons()
}

func (w *candidateWalk) wantNothing(t *testing.T) {
	t.Helper()
	if calls := w.cloud.takeCalls(); len(calls) > 0 {
		t.Errorf("calls %v although nothing changes; candidates %s", describeCalls(calls), w.describe())
	}
}

// choose sets candidates at random: at least the last has no maximum.
func (w *candidateWalk) choose() {
	w.list = nil
	kinds := []candidates.Candidate{baseOfTwo, spot, largerSpot, lastResort, {Name: "large", InstanceType: "large"}}
	for _, n := range w.random.Perm(len(kinds))[:1+w.random.IntN(len(kinds))] {
		c := kinds[n]
		c.MaxInstances = nil
		if w.random.IntN(3) == 0 {
			c.MaxInstances = new(int32(w.random.IntN(4)))
		}
		w.list = append(w.list, c)
	}
	w.list[len(w.list)-1].MaxInstances = nil
	w.returnAfter = time.Duration(w.random.IntN(2)) * 10 * time.Minute
}

func (w *candidateWalk) disturb() {
	switch w.random.IntN(6) {
	case 0:
		w.size = w.random.IntN(6)
	case 1:
		w.choose()
	case 2:
		w.stop()
		if w.random.IntN(2) == 0 {
			w.loseCache()
		}
		w.lead()
		return
	case 3:
		if ids := w.cloud.ids(workersKey); len(ids) > 0 {
			w.cloud.become(ids[w.random.IntN(len(ids))], instance.Stopped)
		}
		return
	default:
		kinds := []string{smallStandard, smallSpot, largeSpot, largeStandard}
		w.limitStock(map[string]int{kinds[w.random.IntN(len(kinds))]: w.random.IntN(5) - 1})
		return
	}
	w.order(workersKey, w.size, settingsOf(w.returnAfter, w.list...))
}

// check checks the group at rest, as far as it rests: replacements may be tried at any time.
func (w *candidateWalk) check() error {
	group, found := w.groups.Get(workersKey)
	if !found {
		return nil
	}
	var working []candidates.Instance
	kinds := map[string]int{}
	for _, i := range w.instances.List(workersKey) {
		if i.Known && i.State == instance.Running && !i.BeingDeleted() {
			working = append(working, stock.Of(&i))
			kinds[w.cloud.market.kinds[i.ID]]++
		}
	}
	if len(working) > int(group.Size)+1 {
		return fmt.Errorf("%d instances work, want %d", len(working), group.Size)
	}
	if len(working) >= int(group.Size) {
		return nil
	}
	counts := candidates.Count(group.Choices(), candidates.Assign(group.Choices(), working))
	for n, v := range group.Variants {
		kind := v.InstanceType + "/" + v.Market
		limit, limited := w.cloud.market.stock[kind]
		used := 0
		for _, vm := range w.cloud.List(workersKey) {
			if w.cloud.market.kinds[vm.ID] == kind && !w.cloud.market.doomed[vm.ID] {
				used++
			}
		}
		room := v.Max == nil || counts[n] < int(*v.Max)
		if room && (!limited || used < limit) {
			return fmt.Errorf("%d of %d instances work, and candidate %s has stock: %v", len(working), group.Size, v.Name, kinds)
		}
	}
	return nil
}

// wantPreferred checks that no instance could be of a better candidate. Instances above the maximum of
// their only candidate may stay.
func (w *candidateWalk) wantPreferred(t *testing.T) {
	t.Helper()
	group, found := w.groups.Get(workersKey)
	if !found {
		return
	}
	choices, have := group.Choices(), stock.Staying(w.instances.List(workersKey))
	assigned := candidates.Assign(choices, have)
	returns := candidates.Returns{Choices: choices, Instances: have, Assigned: assigned, Size: w.size, Available: func(int) bool { return true }}
	if len(have) != int(group.Size) || slices.Contains(returns.Find(), true) {
		t.Errorf("the counts are %v of %s, size %d", candidates.Count(choices, assigned), w.describe(), group.Size)
	}
}

func (w *candidateWalk) describe() string {
	text := ""
	group, found := w.groups.Get(workersKey)
	if !found {
		return "none"
	}
	for _, v := range group.Variants {
		text += fmt.Sprintf("%s %s/%s max %d; ", v.Name, v.InstanceType, v.Market, ptr.Deref(v.Max, -1))
	}
	return text
}
