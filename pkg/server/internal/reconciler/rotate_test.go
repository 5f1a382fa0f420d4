// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// granting sets the grant of a rotation.
func granting(surge, unavailable, upToDate int32, changes ...func(*groups.RotationGrant)) func(*state) {
	grant := &groups.RotationGrant{MaxSurge: surge, MaxUnavailable: unavailable, UpToDate: upToDate}
	for _, change := range changes {
		change(grant)
	}
	return func(s *state) { s.rotation = grant }
}

// until ends a grant, and after replaces instances from before a time, both in minutes from now.
func until(minutes int) func(*groups.RotationGrant) {
	return func(g *groups.RotationGrant) { g.NotAfter = new(planTime.Add(time.Duration(minutes) * time.Minute)) }
}

func after(minutes int) func(*groups.RotationGrant) {
	return func(g *groups.RotationGrant) { g.After = new(planTime.Add(time.Duration(minutes) * time.Minute)) }
}

// towards binds a grant to a target.
func towards(target string) func(*groups.RotationGrant) {
	return func(g *groups.RotationGrant) { g.Target = target }
}

func maxAge(minutes int) func(*groups.RotationGrant) {
	return func(g *groups.RotationGrant) { g.MaxAgeSeconds = int32(60 * minutes) }
}

func TestRotationGrants(t *testing.T) {
	running := func(id string, minutes int, changes ...func(*instance.Instance)) instance.Instance {
		return newInstance(id, minutes, instance.Running, changes...)
	}
	// four has the outdated instances a to d, from the oldest to the youngest.
	four := func() state {
		return group(4, running("a", 40, old), running("b", 30, old), running("c", 20, old), running("d", 10, old))
	}
	drain := func(id, reason string) string { return "drain " + id + " for " + reason + " until +5m0s" }
	testPlans(t, []planCase{
		{"no grant", four(), []string{"create for config-drift"}, 0},
		{"a surge of two", four().with(granting(2, 0, 4)), []string{"create for config-drift", "create for config-drift"}, 0},
		{"a surge larger than what is outdated", four().with(granting(9, 0, 4)),
			[]string{"create for config-drift", "create for config-drift", "create for config-drift", "create for config-drift"}, 0},
		{"no surge", four().with(granting(0, 1, 4)), []string{drain("a", "config-drift")}, 0},
		{"no surge, two at a time", four().with(granting(0, 2, 4)), []string{drain("a", "config-drift"), drain("b", "config-drift")}, 0},
		{"neither", four().with(granting(0, 0, 4)), nil, 0},
		{"both", four().with(granting(1, 1, 4)), []string{"create for config-drift"}, 0},
		{"both, a replacement is pending", group(4, running("a", 40, old), running("b", 30, old), running("c", 20, old), running("d", 10, old),
			newInstance("e", 1, instance.Pending, booting)).with(granting(1, 1, 4)), []string{drain("a", "config-drift")}, 0},
		{"a surge, and a replacement is pending", group(4, running("a", 40, old), running("b", 30, old), running("c", 20, old), running("d", 10, old),
			newInstance("e", 1, instance.Pending, booting)).with(granting(2, 0, 4)), []string{"create for config-drift"}, 0},
		{"enough are up to date", group(4, running("a", 40, old), running("b", 30, old), running("c", 20), running("d", 10)).with(granting(2, 2, 2)), nil, 0},
		{"one more may be up to date", group(4, running("a", 40, old), running("b", 30, old), running("c", 20), running("d", 10)).with(granting(2, 2, 3)),
			[]string{"create for config-drift"}, 0},
		{"more are up to date than the grant allows", group(2, running("a", 40, old), running("b", 30)).with(granting(1, 0, 0)), nil, 0},
		{"a grant for this target", four().with(granting(1, 0, 4, towards(targetOf(four(), 0)))), []string{"create for config-drift"}, 0},
		{"a grant for another target", four().with(granting(2, 2, 4, towards("other"))), nil, 0},
		{"what has begun ends after the target has changed", group(2, running("a", 40, old), running("b", 30, old), running("e", 1)).with(granting(1, 0, 2, towards("other"))),
			[]string{drain("a", "config-drift")}, 0},
		{"for another target, an outdated instance waits for its replacement", group(2, running("a", 40, old), running("b", 30, old),
			newInstance("e", 1, instance.Pending, booting)).with(granting(1, 1, 2, towards("other"))), nil, 0},
		{"the end of the grant", four().with(granting(2, 2, 4, until(0))), nil, 0},
		{"before the end of the grant", four().with(granting(1, 0, 4, until(1))), []string{"create for config-drift"}, 0},
		{"what has begun ends after the grant", group(2, running("a", 40, old), running("b", 30, old), running("e", 1)).with(granting(1, 0, 2, until(-1))),
			[]string{drain("a", "config-drift")}, 0},
		{"after the grant, an outdated instance waits for its replacement", group(2, running("a", 40, old), running("b", 30, old),
			newInstance("e", 1, instance.Pending, booting)).with(granting(1, 1, 2, until(-1))), nil, 0},
		{"no surge: its place is kept while it drains", group(2, running("a", 40, old, draining(instance.ReasonConfigDrift, 4)), running("b", 30, old)).with(granting(0, 1, 2)), nil, 4},
		{"no surge: its place is kept while it is terminated", group(2, running("a", 40, old, deleting(instance.ReasonConfigDrift)), running("b", 30, old)).with(granting(0, 1, 2)),
			[]string{"terminate again a for config-drift"}, 0},
		{"a surge: its place is not kept", group(2, running("a", 40, old, draining(instance.ReasonConfigDrift, 4)), running("b", 30, old)).with(granting(1, 0, 2)),
			[]string{"create for scale-up"}, 4},
		{"no surge: it is gone", group(2, running("b", 30, old)).with(granting(0, 1, 2)), []string{"create for scale-up"}, 0},
		{"no surge: a failed instance is replaced all the same", group(2, newInstance("a", 40, instance.Failed), running("b", 30)).with(granting(0, 1, 2)),
			[]string{"create for unhealthy", "terminate a for unhealthy"}, 0},
		{"a surplus instance is the replacement of a failed one", group(2, running("a", 40), newInstance("b", 30, instance.Failed),
			newInstance("c", 1, instance.Pending, booting)).with(granting(2, 0, 0), removing("a")), []string{"terminate b for unhealthy"}, 0},
		{"health takes what a rotation may take", group(3, newInstance("a", 40, instance.Impaired), running("b", 30, old), running("c", 20, old)).with(granting(0, 1, 3)),
			[]string{"create for unhealthy"}, 0},
		{"the last instance has not come up", four().with(granting(0, 2, 4), func(s *state) { s.createAfter = planTime.Add(time.Minute) }), nil, 1},
		{"the last instance had not come up", four().with(granting(0, 2, 4), func(s *state) { s.createAfter = planTime.Add(-time.Minute) }), []string{drain("a", "config-drift")}, 0},
		{"an operator wants other instances", group(2, running("a", 40), running("b", 30)).with(granting(1, 0, 2, after(-35))), []string{"create for rotated"}, 0},
		{"an operator wants other instances later", group(2, running("a", 40), running("b", 30)).with(granting(1, 0, 2, after(3))), nil, 3},
		{"an age of the operator", group(2, running("a", 40), running("b", 30)).with(granting(0, 1, 2, maxAge(35))), []string{drain("a", "expired")}, 5},
		{"an age of the shard is earlier", group(2, running("a", 40), running("b", 20)).with(granting(0, 1, 2, maxAge(60)), ages(30, 0, 0)), []string{drain("a", "expired")}, 10},
		{"drift comes before other reasons", group(3, running("a", 40), running("b", 30, old), running("c", 20)).with(granting(0, 1, 3, after(-35))), []string{drain("b", "config-drift")}, 0},
	})
}

// targetOf returns the target that operators get so many minutes from now.
func targetOf(s state, minutes int) string {
	return rotationProgress(s, planTime.Add(time.Duration(minutes)*time.Minute)).Target
}

// The target changes with the configuration, and when the time passes after which an operator wants other
// instances, and with nothing else: a grant must not end before its rotation.
func TestTheTargetOfARotation(t *testing.T) {
	base := group(2, newInstance("a", 40, instance.Running), newInstance("b", 30, instance.Running))
	want := targetOf(base, 0)
	assert.Len(t, want, 2*targetSize)
	for name, same := range map[string]state{
		"a grant":      base.with(granting(1, 0, 2, until(3), maxAge(60), towards("other"))),
		"a later time": base.with(granting(1, 0, 2, after(3))),
		"another size": group(3, newInstance("a", 40, instance.Running, old)),
		"ages":         base.with(ages(10, 20, 0)),
	} {
		assert.Equal(t, want, targetOf(same, 0), name)
	}
	later := base.with(granting(1, 0, 2, after(3)))
	assert.NotEqual(t, want, targetOf(later, 3))
	assert.Equal(t, targetOf(later, 3), targetOf(later, 4))
	assert.NotEqual(t, targetOf(later, 3), targetOf(base.with(granting(1, 0, 2, after(2))), 3))
	assert.NotEqual(t, want, targetOf(base.with(func(s *state) { s.infraConfigHash = "next" }), 0))
}

// The numbers that operators get are those that decide.
func TestRotationProgress(t *testing.T) {
	s := group(5,
		newInstance("a", 60, instance.Running, old), newInstance("b", 50, instance.Running, old), newInstance("c", 40, instance.Impaired, old),
		newInstance("d", 30, instance.Running), newInstance("e", 20, instance.Running, old, draining(instance.ReasonConfigDrift, 3)),
		newInstance("f", 1, instance.Pending, known), newInstance("g", 1, instance.Running, onDemand, old),
	).with(granting(1, 0, 5, after(-45)))
	assert.Equal(t, instance.RotationProgress{
		Outdated: map[string]int{instance.ReasonConfigDrift: 3}, UpToDate: 2, Above: 1, Below: 2, Target: targetOf(s, 0),
	}, rotationProgress(s, planTime))
	s.infraConfigHash = ""
	assert.Equal(t, instance.RotationProgress{
		Outdated: map[string]int{instance.ReasonRotated: 2}, UpToDate: 3, Above: 1, Below: 2, Target: targetOf(s, 0),
	}, rotationProgress(s, planTime))
	s.size = 8
	s.expiry.ForcedAge = 55 * time.Minute // a has reached it
	assert.Equal(t, planTime.Add(5*time.Minute), rotationProgress(s, planTime).ForcedAt, "b is the next")
	s.expiry.ForcedAge = 0
	assert.Equal(t, instance.RotationProgress{
		Outdated: map[string]int{instance.ReasonRotated: 2}, UpToDate: 6, Above: 0, Below: 5, Target: targetOf(s, 0),
	}, rotationProgress(s, planTime))
}
