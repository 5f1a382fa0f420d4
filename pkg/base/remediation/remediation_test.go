// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package remediation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/tier"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// policy has the checks that most users have.
func policy(limit, inFlight int) Policy {
	return Policy{
		Checks:         []Check{{"Ready", "False", 10 * time.Minute}, {"Ready", "Unknown", 5 * time.Minute}, {"GPU", "False", time.Hour}},
		StartupTimeout: 20 * time.Minute,
		Limit:          limit, MaxInFlight: inFlight,
	}
}

// node returns the instance of a Node that has had a condition for some minutes.
func node(id, condition, status string, minutes int) Instance {
	return Instance{Shard: "a", ID: id, Connected: true, Node: &Node{Name: "node-" + id, Conditions: []Condition{
		{"DiskPressure", "False", now.Add(-24 * time.Hour)}, {condition, status, now.Add(-time.Duration(minutes) * time.Minute)},
	}}}
}

func healthy(id string) Instance { return node(id, "Ready", "True", 60) }

// nodeless returns an instance that has run without a Node for some minutes.
func nodeless(id string, minutes int) Instance {
	return Instance{Shard: "a", ID: id, Connected: true, NodelessSince: now.Add(-time.Duration(minutes) * time.Minute)}
}

func with(instance Instance, change func(*Instance)) Instance {
	change(&instance)
	return instance
}

// gpuLost adds another unhealthy condition to a Node.
func gpuLost(i *Instance) {
	i.Node.Conditions = append(i.Node.Conditions, Condition{"GPU", "False", now.Add(-time.Hour)})
}

func named(i *Instance)   { i.Named = true }
func leaving(i *Instance) { i.Leaving = true }
func away(i *Instance)    { i.Connected = false }

// ids returns the ids of the instances to replace.
func ids(d Decision) []string {
	var found []string
	for _, replacement := range d.Replace {
		found = append(found, replacement.ID)
	}
	return found
}

func TestDecisions(t *testing.T) {
	unknown := func(id string, minutes int) Instance { return node(id, "Ready", "Unknown", minutes) }
	for name, test := range map[string]struct {
		policy    Policy
		instances []Instance
		want      []string
		tooMany   bool
		next      time.Duration
	}{
		"all are healthy":                  {policy(9, 9), []Instance{healthy("1"), healthy("2")}, nil, false, 0},
		"not for long enough":              {policy(9, 9), []Instance{unknown("1", 4), node("2", "Ready", "False", 9)}, nil, false, time.Minute},
		"for just long enough":             {policy(9, 9), []Instance{unknown("1", 5), node("2", "Ready", "False", 10)}, []string{"1", "2"}, false, 0},
		"another condition":                {policy(9, 9), []Instance{node("1", "GPU", "False", 60), node("2", "GPU", "Unknown", 60)}, []string{"1"}, false, 0},
		"a Node without conditions":        {policy(9, 9), []Instance{with(healthy("1"), func(i *Instance) { i.Node.Conditions = nil })}, nil, false, 0},
		"no Node for long":                 {policy(9, 9), []Instance{nodeless("1", 20), nodeless("2", 19)}, []string{"1"}, false, time.Minute},
		"Nodes are not awaited":            {Policy{Limit: 9, MaxInFlight: 9}, []Instance{nodeless("1", 600)}, nil, false, 0},
		"it is not certain which Node":     {policy(9, 9), []Instance{{ID: "1", Connected: true}}, nil, false, 0},
		"the oldest problem first":         {policy(9, 2), []Instance{unknown("1", 6), unknown("2", 9), nodeless("3", 40)}, []string{"2", "3"}, false, 0},
		"as many as the limit":             {policy(2, 9), []Instance{unknown("1", 6), unknown("2", 9), healthy("3")}, []string{"1", "2"}, false, 0},
		"more than the limit":              {policy(1, 9), []Instance{unknown("1", 6), unknown("2", 9), healthy("3")}, nil, true, 0},
		"more than the limit before long":  {policy(1, 9), []Instance{unknown("1", 6), unknown("2", 1), healthy("3")}, nil, true, 4 * time.Minute},
		"new instances are not too many":   {policy(1, 9), []Instance{unknown("1", 6), nodeless("2", 1), nodeless("3", 1)}, []string{"1"}, false, 19 * time.Minute},
		"no more than the limit of 0":      {policy(0, 9), []Instance{unknown("1", 6)}, nil, true, 0},
		"a shard that is away counts":      {policy(1, 9), []Instance{unknown("1", 6), with(unknown("2", 9), away)}, nil, true, 0},
		"a shard that is away is not told": {policy(2, 1), []Instance{unknown("1", 6), with(unknown("2", 9), away)}, []string{"1"}, false, 0},
		"of two problems the older":        {policy(9, 9), []Instance{with(unknown("1", 1), gpuLost)}, []string{"1"}, false, 0},
		"a drain counts":                   {policy(9, 1), []Instance{unknown("1", 6), with(unknown("2", 9), leaving)}, nil, false, 0},
		"a drain of a healthy Node":        {policy(9, 1), []Instance{unknown("1", 6), with(healthy("2"), leaving)}, []string{"1"}, false, 0},
		"named before":                     {policy(9, 1), []Instance{with(unknown("1", 6), named), unknown("2", 9)}, []string{"1"}, false, 0},
		"named before, and too many":       {policy(1, 9), []Instance{with(unknown("1", 6), named), unknown("2", 9)}, []string{"1"}, true, 0},
		"named, and again just now":        {policy(9, 9), []Instance{with(unknown("1", 1), named)}, []string{"1"}, false, 0},
		"named, and healthy again":         {policy(9, 9), []Instance{with(healthy("1"), named)}, nil, false, 0},
		"named by another leader":          {policy(9, 9), []Instance{with(nodeless("1", 0), named)}, []string{"1"}, false, 0},
		"named, and not certain":           {policy(9, 9), []Instance{with(Instance{ID: "1", Connected: true}, named)}, []string{"1"}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(test.policy, test.instances, now)
			assert.Equal(t, test.want, ids(d))
			assert.Equal(t, test.tooMany, d.TooMany)
			next := time.Duration(0)
			if !d.Next.IsZero() {
				next = d.Next.Sub(now)
			}
			assert.Equal(t, test.next, next)
		})
	}
}

func TestReplacementsHaveAProblem(t *testing.T) {
	d := Decide(policy(9, 9), []Instance{nodeless("2", 20), node("1", "Ready", "Unknown", 5)}, now)
	assert.Equal(t, []Replacement{
		{"a", "1", "node-1", "Ready is Unknown"},
		{"a", "2", "", "it runs without a Node"},
	}, d.Replace)
}

// A Node on the API server is compared with the same checks.
func TestIsUnhealthy(t *testing.T) {
	p := policy(0, 0)
	for name, test := range map[string]struct {
		node Instance
		want bool
	}{
		"healthy": {healthy("1"), false}, "for long enough": {node("1", "Ready", "False", 10), true}, "since recently": {node("1", "Ready", "False", 9), false},
	} {
		assert.Equal(t, test.want, p.IsUnhealthy(test.node.Node, now), name)
	}
}

// Whatever is observed: a healthy Node is never replaced, nothing new is named beyond the limits, the
// order of the instances does not matter, and a second decision changes nothing.
func TestDecisionsKeepToTheLimits(t *testing.T) {
	for _, seed := range tier.Seeds(t, 300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			p := policy(r.IntN(8), 1+r.IntN(4))
			var instances []Instance
			for n := range r.IntN(20) {
				i := []Instance{
					healthy(""), node("", "Ready", "Unknown", r.IntN(12)), node("", "Ready", "False", r.IntN(24)), nodeless("", r.IntN(40)), {},
				}[r.IntN(5)]
				i.ID, i.Shard = fmt.Sprintf("i-%02d", n), []string{"a", "b"}[r.IntN(2)]
				i.Connected, i.Leaving = r.IntN(8) > 0, r.IntN(8) == 0
				i.Named = !i.Leaving && r.IntN(6) == 0
				instances = append(instances, i)
			}
			d := Decide(p, instances, now)
			before, added := 0, 0
			for _, i := range instances {
				h := p.healthOf(i, now)
				if i.Leaving && h.failing || i.Named && (h.failing || i.Node == nil) {
					before++
				}
				if !slices.Contains(ids(d), i.ID) {
					continue
				}
				require.True(t, i.Connected && !i.Leaving, "%s is replaced", i.ID)
				if i.Named {
					continue
				}
				added++
				require.True(t, h.failing && !h.due.After(now), "%s is replaced", i.ID)
			}
			if d.Failing > p.Limit {
				require.Zero(t, added, "too many")
			}
			require.LessOrEqual(t, added, max(0, p.MaxInFlight-before))

			shuffled := slices.Clone(instances)
			r.Shuffle(len(shuffled), func(a, b int) { shuffled[a], shuffled[b] = shuffled[b], shuffled[a] })
			require.Equal(t, d, Decide(p, shuffled, now))
			for n := range instances {
				instances[n].Named = instances[n].Named || slices.Contains(ids(d), instances[n].ID)
			}
			again := Decide(p, instances, now)
			require.Equal(t, ids(d), ids(again))
			require.Equal(t, d.InFlight, again.InFlight)
		})
	}
}
