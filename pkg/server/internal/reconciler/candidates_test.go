// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// withMarket runs a test for a server whose cloud has limited stock.
func withMarket(t *testing.T, mode lackMode, test func(t *testing.T, s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newMarketConfig())
		s.cloud.market = newMarket(mode)
		test(t, s)
	})
}

var allModes = []lackMode{lackAtCall, lackKnown, lackLater, lackFailed}

// settingsOf returns the settings of a group with candidates.
func settingsOf(returnAfter time.Duration, list ...candidates.Candidate) groups.Settings {
	return groups.Settings{Candidates: list, ReturnAfterSeconds: int32(returnAfter / time.Second)}
}

// The first candidate that is below its maximum and that the cloud has is taken, however the cloud says
// that it has none.
func TestCandidatesFallBackAndReturn(t *testing.T) {
	for _, mode := range allModes {
		t.Run(string(mode), func(t *testing.T) {
			withMarket(t, mode, func(t *testing.T, s *server) {
				s.limitStock(map[string]int{smallSpot: 1, largeSpot: 1})
				s.order(workersKey, 5, settingsOf(time.Hour, baseOfTwo, spot, largerSpot, lastResort))
				s.passWith(time.Minute, 10)
				require.Equal(t, []string{largeSpot, smallSpot, smallStandard, smallStandard, smallStandard}, s.kindsOf(workersKey))
				s.takeEvents()
				s.takeFailures()
				s.takeCreates()
				// Without stock there is an attempt each hour, for two candidates in two subnets.
				s.passWith(10*time.Minute, 30)
				s.wantNoDeletionOf(smallStandard, largeSpot)
				assert.LessOrEqual(t, s.takeCreates(), 5*4)
				assert.Empty(t, s.takeFailures(), "an instance that stays is no failure")
				s.limitStock(map[string]int{smallSpot: -1})
				s.passWith(5*time.Minute, 40)
				assert.Equal(t, []string{smallSpot, smallSpot, smallSpot, smallStandard, smallStandard}, s.kindsOf(workersKey))
				assert.Equal(t, map[string]int{instance.ReasonNotPreferred: 2}, s.drainReasons())
			})
		})
	}
}

// wantNoDeletionOf checks that no instance that came up was deleted. Those that never existed may be.
func (s *server) wantNoDeletionOf(kinds ...string) {
	s.t.Helper()
	assert.Empty(s.t, s.drainReasons(), "instances of %v drain", kinds)
}

// drainReasons returns how many drains were reported since the last call, by reason.
func (s *server) drainReasons() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	reasons := map[string]int{}
	for _, e := range s.events {
		if e.status == "draining" {
			reasons[e.reason]++
		}
	}
	s.events = nil
	return reasons
}

func TestAddingACandidateReplacesNothing(t *testing.T) {
	withMarket(t, lackAtCall, func(t *testing.T, s *server) {
		s.scale(workersKey, 3)
		s.settle()
		s.takeEvents()
		group, _ := s.groups.Get(workersKey)
		before := group.InfraConfigHash
		small := candidates.Candidate{Name: "small", InstanceType: "small"}
		large := candidates.Candidate{Name: "large", InstanceType: "large"}
		for _, list := range [][]candidates.Candidate{{small}, {small, large}, {large, small}, {{Name: "large", InstanceType: "large", MaxInstances: new(int32(1))}, small}} {
			s.order(workersKey, 3, settingsOf(0, list...))
			s.passWith(time.Minute, 10)
			assert.Empty(t, s.drainReasons(), "%v", list)
		}
		group, _ = s.groups.Get(workersKey)
		assert.True(t, group.IsCurrent(before))
		assert.Equal(t, []string{smallStandard, smallStandard, smallStandard}, s.kindsOf(workersKey))
		// Without it, its instances are rotated.
		s.order(workersKey, 3, settingsOf(0, large))
		s.passWith(time.Minute, 20)
		assert.Equal(t, []string{largeStandard, largeStandard, largeStandard}, s.kindsOf(workersKey))
		assert.Equal(t, map[string]int{instance.ReasonConfigDrift: 3}, s.drainReasons())
	})
}

// Only a lack of capacity leads to the next candidate: it would hide a mistake.
func TestOtherErrorsDoNotLeadToTheNextCandidate(t *testing.T) {
	withMarket(t, lackAtCall, func(t *testing.T, s *server) {
		mistake := errors.New("no such image")
		s.cloud.rejectCalls(func(c call) error {
			if c.operation == "create" {
				return mistake
			}
			return nil
		})
		s.order(workersKey, 1, settingsOf(0, spot, lastResort))
		s.passWith(time.Minute, 3)
		assert.Empty(t, s.cloud.ids(workersKey))
		assert.NotEmpty(t, s.takeFailures())
		s.cloud.rejectCalls(nil)
		s.passWith(time.Minute, 3)
		assert.Equal(t, []string{smallSpot}, s.kindsOf(workersKey))
	})
}

// A shortfall is reported only if every candidate lacks capacity, with each reason once.
func TestShortfallOfAllCandidates(t *testing.T) {
	for _, mode := range allModes {
		t.Run(string(mode), func(t *testing.T) {
			withMarket(t, mode, func(t *testing.T, s *server) {
				s.limitStock(map[string]int{smallStandard: 1, smallSpot: 0, largeSpot: 0})
				s.order(workersKey, 2, settingsOf(0, baseOfTwo, spot, largerSpot, lastResort))
				s.passWith(20*time.Second, 8)
				assert.Equal(t, []string{smallStandard}, s.kindsOf(workersKey))
				s.wantShortfall("1: out of capacity: no small/Standard; no small/Spot; no large/Spot")
				s.limitStock(map[string]int{largeSpot: 1})
				s.passWith(time.Minute, 10)
				assert.Equal(t, []string{largeSpot, smallStandard}, s.kindsOf(workersKey))
				s.wantShortfall("")
			})
		})
	}
}

// The server is killed before each of its calls while it falls back from one candidate to the next.
func TestCrashBetweenRejectionAndFallback(t *testing.T) {
	for _, mode := range allModes {
		for step := 1; ; step++ {
			crashed := false
			t.Run(fmt.Sprintf("%s, step %d", mode, step), func(t *testing.T) {
				withMarket(t, mode, func(t *testing.T, s *server) {
					s.limitStock(map[string]int{smallSpot: 1})
					crash := s.crashBeforeCall(step, step%2 == 0)
					s.order(workersKey, 3, settingsOf(0, spot, lastResort))
					crash.proceed(workersKey)
					for range 10 {
						s.pass(time.Minute)
						crash.proceed(workersKey)
					}
					crashed = crash.happened
					assert.Equal(t, []string{smallSpot, smallStandard, smallStandard}, s.kindsOf(workersKey))
					assert.Len(t, s.cloud.List(workersKey), 3)
					assert.Len(t, s.instances.List(workersKey), 3)
				})
			})
			if t.Failed() || !crashed {
				break
			}
		}
	}
}

// A request that may have had an effect is made again for the same candidate, even if a better one is
// available by then.
func TestAnUncertainRequestKeepsItsCandidate(t *testing.T) {
	withMarket(t, lackAtCall, func(t *testing.T, s *server) {
		creates := 0
		s.cloud.rejectCalls(func(c call) error {
			if c.operation != "create" {
				return nil
			}
			// Spot is tried in two subnets.
			if creates++; creates == 3 {
				s.cloud.market.stock = nil
				return errBusy
			}
			return nil
		})
		s.limitStock(map[string]int{smallSpot: 0})
		s.order(workersKey, 1, settingsOf(0, spot, lastResort))
		s.passWith(time.Minute, 5)
		assert.Equal(t, []string{smallStandard}, s.kindsOf(workersKey))
		assert.Len(t, s.cloud.List(workersKey), 1)
	})
}

// An answer that is lost leaves one instance.
func TestALostAnswerOfACandidate(t *testing.T) {
	withMarket(t, lackAtCall, func(t *testing.T, s *server) {
		lost := 1
		s.cloud.lostAnswer = func() bool { lost--; return lost >= 0 }
		s.limitStock(map[string]int{smallSpot: 1})
		s.order(workersKey, 1, settingsOf(0, spot, lastResort))
		s.passWith(time.Minute, 5)
		assert.Equal(t, []string{smallSpot}, s.kindsOf(workersKey))
		assert.Len(t, s.cloud.List(workersKey), 1)
	})
}

// A replacement for an instance that is not preferred is never of the same candidate, also if it was requested
// before and its first request has failed.
func TestAReturnThatFailsCreatesNothing(t *testing.T) {
	withMarket(t, lackAtCall, func(t *testing.T, s *server) {
		s.limitStock(map[string]int{smallSpot: 0})
		s.order(workersKey, 1, settingsOf(10*time.Minute, spot, lastResort))
		s.passWith(time.Minute, 5)
		s.limitStock(map[string]int{smallSpot: 1})
		failed := false
		s.cloud.rejectCalls(func(c call) error {
			if c.operation != "create" || failed {
				return nil
			}
			failed = true
			s.cloud.market.stock[smallSpot] = 0
			return errBusy
		})
		s.passWith(time.Minute, 20)
		require.True(t, failed)
		assert.Equal(t, []string{smallStandard}, s.kindsOf(workersKey))
		assert.Len(t, s.cloud.groups, 1, "instances that ever existed")
	})
}

// A replacement that is on its way is for the instance that leaves first.
func TestOnlyTheReplacementOfANotPreferredInstanceMustBeBetter(t *testing.T) {
	at := func(id, hash string, state instance.State, age time.Duration) instance.Instance {
		return instance.Instance{Known: true, State: state, Record: instance.Record{ID: id, InfraConfigHash: hash, ProviderID: "vm", CreatedAt: planTime.Add(-age)}}
	}
	s := state{
		size: 2, drainTimeout: time.Minute, returnAfter: 10 * time.Minute,
		choices:   []candidates.Choice{{Hash: "a"}, {Hash: "b"}},
		freeSince: []time.Time{planTime.Add(-time.Hour), planTime},
		rotation:  &groups.RotationGrant{MaxSurge: 2, UpToDate: 2},
		instances: []instance.Instance{
			at("1", "old", instance.Running, time.Hour), at("2", "b", instance.Running, time.Hour), at("3", "b", instance.Pending, 0),
		},
	}
	s.instances[2].Agent.State = instance.AgentAwaited
	actions, _ := plan(s, planTime)
	assert.Equal(t, []action{{verb: create, reason: instance.ReasonNotPreferred, below: 1}}, actions)
}

// With the base at its maximum, its instances are replaced by instances of the base.
func TestTheBaseIsRotatedWithinItsMaximum(t *testing.T) {
	withMarket(t, lackAtCall, func(t *testing.T, s *server) {
		s.order(workersKey, 3, settingsOf(0, baseOfTwo, spot))
		s.passWith(time.Minute, 5)
		want := []string{smallSpot, smallStandard, smallStandard}
		require.Equal(t, want, s.kindsOf(workersKey))
		before := s.cloud.ids(workersKey)
		s.config = newMarketConfig()
		s.config.Shard.Expiry.EligibleAge = 24 * time.Hour
		require.NoError(t, s.groups.Reconfigure(t.Context(), s.config))
		s.passWith(time.Hour, 30)
		assert.Equal(t, want, s.kindsOf(workersKey))
		assert.NotContains(t, s.cloud.ids(workersKey), before[0])
		assert.Equal(t, map[string]int{instance.ReasonExpired: 3}, s.drainReasons())
	})
}

func TestCollectorOfCandidates(t *testing.T) {
	withMarket(t, lackAtCall, func(t *testing.T, s *server) {
		s.limitStock(map[string]int{smallSpot: 1})
		s.order(workersKey, 4, settingsOf(0, baseOfTwo, spot, lastResort))
		s.passWith(time.Minute, 5)
		registry := prometheus.NewRegistry()
		registry.MustRegister(&Collector{Groups: s.groups, Instances: s.instances})
		wantMetrics(t, registry, []string{"nstance_server_group_candidates"},
			"group_candidates{candidate=base,group=workers,tenant=default} 2",
			"group_candidates{candidate=last-resort,group=workers,tenant=default} 1",
			"group_candidates{candidate=spot,group=workers,tenant=default} 1",
		)
	})
}

func noExpiry() config.Expiry { return config.Expiry{} }

// Surplus instances leave from the last candidate on.
func TestTheLastCandidateLeavesFirst(t *testing.T) {
	withMarket(t, lackAtCall, func(t *testing.T, s *server) {
		s.limitStock(map[string]int{smallSpot: 2})
		s.order(workersKey, 6, settingsOf(0, baseOfTwo, spot, lastResort))
		s.passWith(time.Minute, 5)
		for _, want := range [][]string{
			{smallSpot, smallSpot, smallStandard, smallStandard, smallStandard},
			{smallSpot, smallSpot, smallStandard, smallStandard},
			{smallSpot, smallStandard, smallStandard},
			{smallStandard, smallStandard},
			{smallStandard},
		} {
			group, _ := s.groups.Get(workersKey)
			orders := &DeletionOrders{Expiry: noExpiry}
			order, _ := orders.Of(group, s.instances.List(workersKey))
			s.order(workersKey, len(want), settingsOf(0, baseOfTwo, spot, lastResort))
			s.passWith(time.Minute, 2)
			assert.Equal(t, want, s.kindsOf(workersKey))
			assert.NotContains(t, s.cloud.ids(workersKey), order[0].ID, "the deletion order says another one")
		}
	})
}

// On-demand instances are of the first candidate that there is. An instance type or another template of
// their own leaves the candidates out.
func TestOnDemandInstancesOfCandidates(t *testing.T) {
	withMarket(t, lackAtCall, func(t *testing.T, s *server) {
		s.config.Templates["other"] = s.config.Templates["worker"]
		other := s.config.Templates["other"]
		other.InstanceType = "large"
		s.config.Templates["other"] = other
		s.limitStock(map[string]int{smallSpot: 1})
		s.order(workersKey, 0, settingsOf(0, spot, lastResort))
		kindOf := func(change func(*instance.Record)) string {
			id := s.onDemand(workersKey, change)
			s.passWith(time.Minute, 2)
			return s.cloud.market.kinds[id]
		}
		assert.Equal(t, smallSpot, kindOf(func(*instance.Record) {}))
		assert.Equal(t, smallStandard, kindOf(func(r *instance.Record) { r.Template = "worker" }))
		assert.Equal(t, largeStandard, kindOf(func(r *instance.Record) { r.InstanceType = "large" }))
		assert.Equal(t, largeStandard, kindOf(func(r *instance.Record) { r.Template = "other" }))
	})
}

// An instance leaves before its replacement exists only for a candidate that the cloud is known to have.
func TestNoInstanceLeavesForACandidateThatIsMissing(t *testing.T) {
	withMarket(t, lackKnown, func(t *testing.T, s *server) {
		s.limitStock(map[string]int{smallSpot: 0})
		s.order(workersKey, 2, settingsOf(10*time.Minute, spot, lastResort))
		upsert := func(grant *groups.RotationGrant) {
			settings := settingsOf(10*time.Minute, spot, lastResort)
			settings.Template = "worker"
			_, _, err := s.groups.Upsert(t.Context(), workersKey, groups.Change{Settings: settings, Declarative: true, Size: 2, Rotation: grant})
			require.NoError(t, err)
		}
		upsert(&groups.RotationGrant{MaxSurge: 0, MaxUnavailable: 1, UpToDate: 2})
		s.passWith(5*time.Minute, 20)
		assert.Equal(t, []string{smallStandard, smallStandard}, s.kindsOf(workersKey))
		assert.Empty(t, s.drainReasons())
		// It is known only when an instance could leave that there is none any more.
		s.limitStock(map[string]int{smallSpot: 1})
		s.passWith(time.Minute, 9)
		s.limitStock(map[string]int{smallSpot: 0})
		s.passWith(time.Minute, 9)
		assert.Empty(t, s.drainReasons())
		s.limitStock(map[string]int{smallSpot: 1})
		s.passWith(5*time.Minute, 20)
		assert.Equal(t, []string{smallSpot, smallStandard}, s.kindsOf(workersKey))
		assert.Equal(t, map[string]int{instance.ReasonNotPreferred: 1}, s.drainReasons())
	})
}

// A group that grows has room for better candidates, and the missing instances take it first.
func TestAGroupThatGrowsHasNoOutdatedInstances(t *testing.T) {
	withMarket(t, lackAtCall, func(t *testing.T, s *server) {
		base := func(most int32) groups.Settings {
			return settingsOf(10*time.Minute, candidates.Candidate{Name: "base", MaxInstances: &most}, spot)
		}
		s.order(workersKey, 4, base(1))
		s.passWith(time.Minute, 30)
		s.order(workersKey, 6, base(3))
		s.passWith(time.Minute, 30)
		assert.Empty(t, s.drainReasons())
		assert.Equal(t, []string{smallSpot, smallSpot, smallSpot, smallStandard, smallStandard, smallStandard}, s.kindsOf(workersKey))
	})
}

// A better candidate with a maximum whose requests fail, but not for lack of capacity, is tried as seldom as
// any other request that fails, and with one record.
func TestAReturnThatFailsAgainAndAgainIsDelayed(t *testing.T) {
	for name, most := range map[string]*int32{"a maximum": new(int32(1)), "no maximum": nil} {
		t.Run(name, func(t *testing.T) {
			withMarket(t, lackAtCall, func(t *testing.T, s *server) {
				s.limitStock(map[string]int{smallSpot: 0})
				better := candidates.Candidate{Name: "better", Market: spot.Market, MaxInstances: most}
				s.order(workersKey, 1, settingsOf(10*time.Minute, better, lastResort))
				s.passWith(time.Minute, 5)
				s.limitStock(map[string]int{smallSpot: 1})
				s.cloud.rejectCalls(func(c call) error {
					if c.operation == "create" {
						return errBusy
					}
					return nil
				})
				s.takeCreates()
				s.passWith(time.Minute, 20)
				// With a delay of at most 30 s, in two subnets, for ten minutes and more; and the steps of the test.
				assert.LessOrEqual(t, s.takeCreates(), 300)
				assert.LessOrEqual(t, len(s.instances.List(workersKey)), 2)
				s.cloud.rejectCalls(nil)
				s.passWith(time.Minute, 5)
				assert.Equal(t, []string{smallSpot}, s.kindsOf(workersKey))
			})
		})
	}
}
