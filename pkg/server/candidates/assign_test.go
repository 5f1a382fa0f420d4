// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package candidates

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/testing/tier"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// instances returns instances with these hashes, the oldest first.
func instances(hashes ...string) []Instance {
	var list []Instance
	for n, hash := range hashes {
		list = append(list, Instance{ID: fmt.Sprintf("i%03d", n), Hash: hash, CreatedAt: start.Add(time.Duration(n) * time.Minute)})
	}
	return list
}

// base is a base of two on-demand instances, then spot, and on-demand as the last resort.
var base = []Choice{{Hash: "on-demand", Max: new(int32(2))}, {Hash: "spot"}, {Hash: "large", Max: new(int32(1))}, {Hash: "on-demand"}}

func TestAssign(t *testing.T) {
	tests := map[string]struct {
		choices   []Choice
		instances []Instance
		want      []int
	}{
		"base and spot":                        {base, instances("on-demand", "spot", "on-demand", "spot"), []int{0, 1, 0, 1}},
		"the youngest is the last resort":      {base, instances("on-demand", "on-demand", "spot", "on-demand"), []int{0, 0, 1, 3}},
		"another configuration":                {base, instances("old", "spot"), []int{None, 1}},
		"more than the maximum stay":           {base, instances("large", "large"), []int{2, 2}},
		"a maximum of zero":                    {[]Choice{{Hash: "a", Max: new(int32(0))}, {Hash: "b"}}, instances("a", "b"), []int{0, 1}},
		"no instances":                         {base, nil, []int{}},
		"the age decides, and not the order":   {base, reversed(instances("on-demand", "on-demand", "on-demand")), []int{3, 0, 0}},
		"a last resort of the base becomes it": {base, instances("on-demand", "on-demand", "on-demand")[1:], []int{0, 0}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { assert.Equal(t, test.want, Assign(test.choices, test.instances)) })
	}
}

func reversed(list []Instance) []Instance {
	slices.Reverse(list)
	return list
}

func TestNext(t *testing.T) {
	without := func(unavailable ...int) func(int) bool {
		return func(at int) bool { return !slices.Contains(unavailable, at) }
	}
	assert.Equal(t, []int{0, 1, 2}, Next(base, []int{0, 0, 0, 0}, nil), "the last resort has the hash of the base")
	assert.Equal(t, []int{1, 2, 3}, Next(base, []int{2, 0, 0, 0}, nil), "the base is full")
	assert.Equal(t, []int{1, 3}, Next(base, []int{2, 5, 1, 0}, nil))
	assert.Equal(t, []int{2, 3}, Next(base, []int{2, 0, 0, 0}, without(1)))
	assert.Empty(t, Next(base, []int{2, 0, 0, 0}, without(1, 2, 3)))
	assert.Empty(t, Next(nil, nil, nil))
}

func TestReturns(t *testing.T) {
	all := func(int) bool { return true }
	free := func(available ...int) func(int) bool {
		return func(at int) bool { return slices.Contains(available, at) }
	}
	list := []Choice{{Hash: "a", Max: new(int32(1))}, {Hash: "b"}, {Hash: "c"}}
	tests := map[string]struct {
		choices   []Choice
		hashes    []string
		size      int
		available func(int) bool
		want      []bool
	}{
		"nothing is known to be available":         {list, []string{"b", "c"}, 2, free(), []bool{false, false}},
		"the worst goes to the best":               {list, []string{"b", "c"}, 2, free(0), []bool{false, true}},
		"as many as there is room":                 {list, []string{"c", "c", "b"}, 3, free(0), []bool{true, false, false}},
		"all have better ones":                     {list, []string{"c", "c", "b"}, 3, all, []bool{true, true, false}},
		"the best is full":                         {list, []string{"a", "b"}, 2, all, []bool{false, false}},
		"what is missing takes the room":           {list, []string{"b", "b"}, 3, free(0), []bool{false, false}},
		"and only that room":                       {[]Choice{{Hash: "a", Max: new(int32(3))}, {Hash: "b"}}, []string{"b", "b"}, 3, free(0), []bool{true, true}},
		"a replacement took the room":              {list, []string{"b", "b", "a"}, 2, free(), []bool{true, false, false}},
		"an older instance is no replacement":      {list, []string{"a", "b", "b"}, 2, free(), []bool{false, false, false}},
		"another configuration has its own reason": {list, []string{"old"}, 1, all, []bool{false}},
		"the same settings are as good":            {[]Choice{{Hash: "a", Max: new(int32(1))}, {Hash: "a"}}, []string{"a", "a"}, 2, all, []bool{false, false}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			have := instances(test.hashes...)
			r := Returns{Choices: test.choices, Instances: have, Assigned: Assign(test.choices, have), Size: test.size, Surge: 1, Available: test.available}
			assert.Equal(t, test.want, r.Find())
		})
	}
}

// A replacement that is being created has taken the room, and the other instance stays not preferred until
// the candidate is known to be missing.
func TestARequestedReplacement(t *testing.T) {
	choices, have := []Choice{{Hash: "a", Max: new(int32(1))}, {Hash: "b"}}, instances("b", "a")
	for _, test := range []struct{ available, requested, want bool }{
		{true, true, true}, {false, true, false}, {true, false, false},
	} {
		r := Returns{
			Choices: choices, Instances: have, Assigned: Assign(choices, have), Size: 1, Surge: 1,
			Available: func(int) bool { return test.available }, Exists: func(n int) bool { return n == 0 },
			Requested: func(int) bool { return test.requested },
		}
		assert.Equal(t, []bool{test.want, false}, r.Find(), test)
	}
}

// TestRandomStock lets a group grow and shrink with random stock. The number of instances of a candidate
// is never raised above its maximum, the size is reached whenever a candidate has stock, and neither the
// order of instances nor a restart matters.
func TestRandomStock(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(100, 2000)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			choices := randomChoices(random)
			var have []Instance
			nextID := 0
			for range 40 {
				stock := map[string]int{}
				for _, c := range choices {
					stock[c.Hash] = random.IntN(4)
				}
				size := random.IntN(12)
				for len(have) > size {
					have = slices.Delete(have, 0, 1)
				}
				for len(have) < size {
					counts := Count(choices, Assign(choices, have))
					order := Next(choices, counts, func(at int) bool { return stock[choices[at].Hash] > 0 })
					if len(order) == 0 {
						break
					}
					c := choices[order[0]]
					stock[c.Hash]--
					nextID++
					have = append(have, Instance{ID: fmt.Sprintf("i%04d", nextID), Hash: c.Hash, CreatedAt: start.Add(time.Duration(nextID) * time.Second)})
					if after := Count(choices, Assign(choices, have)); !raisedWithin(choices, counts, after) {
						t.Fatalf("choices %v: the counts %v became %v", choices, counts, after)
					}
				}
				left := slices.ContainsFunc(choices, func(c Choice) bool { return c.Max == nil && stock[c.Hash] > 0 })
				if len(have) < size && left {
					t.Fatalf("choices %v: %d of %d instances with the stock %v", choices, len(have), size, stock)
				}
				same(t, random, choices, have)
			}
		})
	}
}

// raisedWithin reports whether no count was raised above the maximum of its candidate.
func raisedWithin(choices []Choice, before, after []int) bool {
	for at, c := range choices {
		if after[at] > before[at] && c.Max != nil && after[at] > int(*c.Max) {
			return false
		}
	}
	return true
}

func randomChoices(random *rand.Rand) []Choice {
	choices := make([]Choice, 1+random.IntN(5))
	for n := range choices {
		choices[n].Hash = string(rune('a' + random.IntN(3)))
		if n < len(choices)-1 && random.IntN(2) == 0 {
			choices[n].Max = new(int32(random.IntN(4)))
		}
	}
	return choices
}

// same checks that the results do not depend on the order of the instances.
func same(t *testing.T, random *rand.Rand, choices []Choice, have []Instance) {
	t.Helper()
	find := func(list []Instance) (map[string]int, map[string]bool) {
		assigned := Assign(choices, list)
		found := Returns{Choices: choices, Instances: list, Assigned: assigned, Size: len(list) - 1, Surge: 1, Available: func(at int) bool { return at%2 == 0 }}.Find()
		byID, returns := map[string]int{}, map[string]bool{}
		for n, i := range list {
			byID[i.ID], returns[i.ID] = assigned[n], found[n]
		}
		return byID, returns
	}
	shuffled := slices.Clone(have)
	random.Shuffle(len(shuffled), func(a, b int) { shuffled[a], shuffled[b] = shuffled[b], shuffled[a] })
	assigned, returns := find(have)
	otherAssigned, otherReturns := find(shuffled)
	if !maps.Equal(assigned, otherAssigned) || !maps.Equal(returns, otherReturns) {
		t.Fatalf("choices %v: in another order %v and %v became %v and %v", choices, assigned, returns, otherAssigned, otherReturns)
	}
	for id, at := range assigned {
		if returns[id] && at == 0 {
			t.Fatalf("%s is of the best candidate and should be of a better one", id)
		}
	}
}
