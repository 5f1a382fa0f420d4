// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// shortfallOf returns the shortfall of a group as a status has it.
func (s *server) shortfallOf(key instance.GroupKey) string {
	group, found := s.groups.Get(key)
	if !found {
		return ""
	}
	missing, message := s.reconciler.Shortfalls.Of(group, s.instances.List(key))
	if missing == 0 {
		return ""
	}
	return fmt.Sprintf("%d: %s", missing, message)
}

func (s *server) wantShortfall(want string) {
	s.t.Helper()
	if got := s.shortfallOf(workersKey); got != want {
		s.t.Errorf("the shortfall is %q, want %q", got, want)
	}
}

// A shortfall changes with the number of missing instances and not with the attempts.
func TestShortfallIsAState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		const full = "no subnet of pool pool has capacity left"
		s.run(workersKey, 1)
		s.wantShortfall("")
		s.cloud.limit(map[string]int{"subnet-1": 0, "subnet-2": 0})
		s.scale(workersKey, 3)
		s.takeFailures()
		var seen []string
		for range 100 {
			s.pass(7 * time.Second)
			if now := s.shortfallOf(workersKey); len(seen) == 0 || seen[len(seen)-1] != now {
				seen = append(seen, now)
			}
		}
		if attempts := len(s.takeFailures()); attempts < 10 {
			t.Errorf("there were %d attempts", attempts)
		}
		if want := []string{"2: out of capacity: " + full}; fmt.Sprint(seen) != fmt.Sprint(want) {
			t.Errorf("the shortfalls were %q, want %q", seen, want)
		}
		// Another instance disproves it, and the next attempt fails again.
		s.cloud.limit(map[string]int{"subnet-1": 2, "subnet-2": 0})
		s.pass(maxBackoff)
		s.wantShortfall("2: out of capacity: " + full)
		s.cloud.settle()
		s.pass(maxBackoff)
		s.wantShortfall("1: out of capacity: " + full)
		s.scale(workersKey, 2)
		s.wantShortfall("")
		s.scale(workersKey, 3)
		s.pass(maxBackoff)
		s.wantShortfall("1: out of capacity: " + full)
		s.cloud.limit(nil)
		s.pass(maxBackoff)
		s.settle()
		s.wantShortfall("")
	})
}

// Every change of a shortfall is reported, so that it can be sent: when an attempt fails,
// when an instance disproves it, and when there is capacity again. The attempts in between
// report the same shortfall.
func TestChangesOfAShortfallAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		const full = ": out of capacity: no subnet of pool pool has capacity left"
		want := []string{""}
		reach := func(shortfalls ...string) {
			t.Helper()
			want = append(want, shortfalls...)
			for range 20 {
				s.pass(maxBackoff)
			}
			s.wantShortfall(want[len(want)-1])
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := s.shortfalls[workersKey]; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("the reported shortfalls are %q, want %q", got, want)
			}
		}
		s.run(workersKey, 1)
		reach()
		s.cloud.limit(map[string]int{"subnet-1": 0, "subnet-2": 0})
		s.scale(workersKey, 4)
		reach("3" + full)
		s.cloud.limit(map[string]int{"subnet-1": 2, "subnet-2": 0})
		s.pass(maxBackoff)
		s.cloud.settle()
		reach("2" + full)
		s.cloud.limit(nil)
		s.pass(maxBackoff)
		s.settle()
		reach("")
		if attempts := len(s.takeFailures()); attempts < 20 {
			t.Errorf("there were %d failed attempts", attempts)
		}
	})
}

// Another leader finds a shortfall with its first attempt, and a deleted group has no
// shortfall.
func TestShortfallOfAnotherLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.cloud.limit(map[string]int{"subnet-1": 0, "subnet-2": 0})
		s.scale(workersKey, 3)
		s.stop()
		s.lead()
		s.reconcile(workersKey)
		s.wantShortfall("3: out of capacity: no subnet of pool pool has capacity left")
		s.remove(workersKey)
		if len(s.reconciler.Shortfalls.byGroup) != 0 {
			t.Errorf("there are %v", s.reconciler.Shortfalls.byGroup)
		}
	})
}

// Other errors are no shortfall.
func TestOtherFailuresAreNoShortfall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.cloud.rejectCalls(func(c call) error {
			if c.operation == "create" {
				return errors.New("too many requests")
			}
			return nil
		})
		s.scale(workersKey, 3)
		s.pass(time.Minute)
		s.wantShortfall("")
		// On-demand instances do not count in the size.
		s.cloud.rejectCalls(nil)
		s.pass(time.Minute)
		s.settle()
		s.cloud.limit(map[string]int{"subnet-1": 0, "subnet-2": 0})
		s.onDemand(workersKey, func(*instance.Record) {})
		s.pass(time.Minute)
		s.wantShortfall("")
	})
}

// A cloud that accepts a request and rejects it later has not created the instance.
func TestAcceptedRequestsAreMissing(t *testing.T) {
	group := &groups.Group{Key: workersKey, Size: 2, InfraConfigHash: "1"}
	running := instance.Instance{Record: instance.Record{ID: "a", ProviderID: "1"}, State: instance.Running, Known: true}
	accepted := instance.Instance{Record: instance.Record{ID: "b"}, State: instance.Pending, Known: true}
	uncreated := instance.Instance{Record: instance.Record{ID: "b"}, State: instance.Pending}
	var s Shortfalls
	s.attempted(group, []instance.Instance{running, uncreated}, fmt.Errorf("create: %w", provider.OutOfCapacity("none left")))
	for _, instances := range [][]instance.Instance{{running, uncreated}, {running, accepted}, {running, uncreated}} {
		if missing, message := s.Of(group, instances); missing != 1 || message != "out of capacity: none left" {
			t.Errorf("missing are %d, %q", missing, message)
		}
	}
	// Another type needs another capacity.
	changed := *group
	changed.InfraConfigHash = "2"
	if missing, _ := s.Of(&changed, []instance.Instance{running}); missing != 0 {
		t.Errorf("missing are %d", missing)
	}
}
