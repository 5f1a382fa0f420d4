// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

const unlimited = math.MaxInt32

func TestStep(t *testing.T) {
	pending := func(shards []Shard) []Shard {
		shards[0].Reported.Instances[0].Pending = true
		return shards
	}
	for name, test := range map[string]struct {
		shards                     []Shard
		candidates                 []Candidate
		replicas, floor, removable int32
		want                       int32
	}{
		"without a limit":                        {shardsOf([]int32{3, 3}, nil), nil, 2, 2, unlimited, 2},
		"one at a time":                          {shardsOf([]int32{3, 3}, nil), nil, 2, 2, 1, 5},
		"blocked":                                {shardsOf([]int32{3, 3}, nil), nil, 2, 2, 0, 6},
		"a scale-up":                             {shardsOf([]int32{3, 3}, nil), nil, 8, 8, 0, 8},
		"the last one":                           {shardsOf([]int32{3, 3}, nil), nil, 5, 5, 4, 5},
		"lowered too short a time ago":           {shardsOf([]int32{3, 3}, nil), nil, 2, 6, unlimited, 6},
		"lowered further too short a time ago":   {shardsOf([]int32{3, 3}, nil), nil, 2, 4, unlimited, 4},
		"a candidate":                            {shardsOf([]int32{3, 3}, nil), candidatesOn(0), 2, 6, 0, 5},
		"a candidate counts":                     {shardsOf([]int32{3, 3}, nil), candidatesOn(0), 2, 2, 1, 5},
		"a candidate counts for the floor":       {shardsOf([]int32{3, 3}, nil), candidatesOn(0), 2, 5, 2, 5},
		"more candidates than surplus":           {shardsOf([]int32{3, 3}, nil), candidatesOn(0, 1, 0), 4, 4, 0, 4},
		"candidates and others":                  {shardsOf([]int32{3, 3}, nil), candidatesOn(0), 2, 2, 2, 4},
		"not yet sent":                           {shardsOf([]int32{3, 3}, []int32{0, 2}), nil, 2, 6, 0, 4},
		"not yet sent, and others":               {shardsOf([]int32{3, 3}, []int32{0, 2}), nil, 2, 2, 1, 3},
		"a pending one":                          {pending(shardsOf([]int32{3, 3}, []int32{0, 0})), nil, 2, 6, 0, 5},
		"negative replicas":                      {shardsOf([]int32{1, 1}, nil), nil, -1, 0, 1, 1},
		"a candidate of a shard that is empty":   {shardsOf([]int32{0, 3}, nil), candidatesOn(0), 2, 2, 0, 3},
		"a candidate that was selected already":  {[]Shard{{ID: "0", Size: 3, HasShardGroup: true, RemoveFirst: []string{"0-0"}}}, candidatesOn(0), 2, 2, 0, 3},
		"the same candidate with two Machines":   {shardsOf([]int32{3, 3}, nil), append(candidatesOn(0), candidatesOn(0)...), 2, 2, 0, 5},
		"a candidate on a shard of another pool": {shardsOf([]int32{3}, nil), candidatesOn(7), 2, 2, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			got := stepReplicas(test.shards, test.replicas, Limits{test.floor, test.removable}, test.candidates)
			assert.Equal(t, test.want, got)
			sizes, _ := scale(test.shards, got, test.candidates)
			assert.Equal(t, max(got, 0), Total(sizes), "scale to the step")
		})
	}
}

func TestStepSizes(t *testing.T) {
	for name, test := range map[string]struct {
		sizes, notYetSent, wanted []int32
		floor, removable          int32
		want                      []int32
	}{
		"without a limit":             {[]int32{2, 2, 2}, nil, []int32{1, 1, 0}, 2, unlimited, []int32{1, 1, 0}},
		"one at a time":               {[]int32{2, 2, 2}, nil, []int32{1, 1, 0}, 2, 1, []int32{2, 2, 1}},
		"blocked":                     {[]int32{2, 2, 2}, nil, []int32{1, 1, 0}, 2, 0, []int32{2, 2, 2}},
		"growth is not delayed":       {[]int32{5, 1, 0}, nil, []int32{2, 2, 1}, 5, 0, []int32{5, 2, 1}},
		"growth, and one is removed":  {[]int32{5, 1, 0}, nil, []int32{2, 2, 1}, 5, 1, []int32{4, 2, 1}},
		"only growth":                 {[]int32{1, 1}, nil, []int32{2, 2}, 4, 0, []int32{2, 2}},
		"lowered too short ago":       {[]int32{2, 2, 2}, nil, []int32{1, 1, 0}, 5, unlimited, []int32{2, 2, 1}},
		"not yet sent":                {[]int32{2, 2, 2}, []int32{0, 0, 1}, []int32{1, 1, 0}, 6, 0, []int32{2, 2, 1}},
		"more is missing than excess": {[]int32{2, 2}, []int32{2, 0}, []int32{1, 1}, 2, 0, []int32{1, 2}},
		"the largest first":           {[]int32{1, 4}, nil, []int32{0, 0}, 0, 3, []int32{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, stepSizes(shardsOf(test.sizes, test.notYetSent), test.wanted, Limits{test.floor, test.removable}))
		})
	}
}

// pool is a pool with a server for each shard. Servers drain the surplus instances and
// list them until they are terminated.
type pool struct {
	r        *rand.Rand
	machines bool
	shards   []Shard
	next     int
}

func newPoolModel(r *rand.Rand) *pool {
	p := &pool{r: r, machines: r.IntN(2) == 0}
	for i := range 1 + r.IntN(4) {
		p.shards = append(p.shards, Shard{ID: fmt.Sprint(i), HasShardGroup: true, Synced: true, Reported: &Group{ListsInstances: true}})
		p.shards[i].Size = r.Int32N(6)
	}
	p.serve()
	return p
}

// serve lets each server follow the size of its shard.
func (p *pool) serve() {
	for i := range p.shards {
		shard := &p.shards[i]
		shard.Reported.Size = shard.Size
		staying := int32(0)
		for n := range shard.Reported.Instances {
			instance := &shard.Reported.Instances[n]
			if shard.Selected(instance.ID) {
				instance.Draining = true
			}
			if !instance.Draining {
				staying++
			}
		}
		for n := range shard.Reported.Instances {
			if staying > shard.Size && !shard.Reported.Instances[n].Draining {
				shard.Reported.Instances[n].Draining = true
				staying--
			}
		}
		for ; staying < shard.Size; staying++ {
			p.next++
			shard.Reported.Instances = append(shard.Reported.Instances, Instance{ID: fmt.Sprintf("%s-%d", shard.ID, p.next)})
		}
	}
}

// terminate completes the drain of some instances, or of all.
func (p *pool) terminate(all bool) {
	for i := range p.shards {
		p.shards[i].Reported.Instances = slices.DeleteFunc(p.shards[i].Reported.Instances, func(instance Instance) bool {
			return instance.Draining && (all || p.r.IntN(3) == 0)
		})
	}
}

func (p *pool) beingRemoved() (removed int32) {
	for i := range p.shards {
		n, _ := p.shards[i].BeingRemoved()
		removed += n
	}
	return removed
}

// newlySelected returns how many ids of removeFirst the shard did not have before.
func (p *pool) newlySelected(shard int, removeFirst []string) (n int32) {
	for _, id := range removeFirst {
		if !p.shards[shard].Selected(id) {
			n++
		}
	}
	return n
}

// step makes one step to replicas, and returns how many instances that are no candidates it
// removes.
func (p *pool) step(replicas, limit int32, candidates []Candidate) (others int32) {
	before := Sizes(p.shards)
	removable := max(limit-p.beingRemoved(), 0)
	division := Divide(Pool{
		Shards: p.shards, Replicas: replicas, Machines: p.machines, Candidates: candidates,
		Limits: &Limits{Floor: replicas, Removable: removable},
	})
	for i := range p.shards {
		others += max(before[i]-division.Sizes[i], 0) - p.newlySelected(i, division.RemoveFirst[i])
		p.shards[i].RemoveFirst, p.shards[i].Size = division.RemoveFirst[i], division.Sizes[i]
	}
	p.serve()
	return others
}

// In spite of any changes of the replicas, no instance is removed while it would be one too
// many at once, other than candidates. A scale-up is complete in one step, and if instances
// terminate, the sizes finally add up to the replicas.
func TestStepsNeverRemoveMoreThanTheLimit(t *testing.T) {
	withSeeds(t, testStepsNeverRemoveMoreThanTheLimit)
}

func testStepsNeverRemoveMoreThanTheLimit(t *testing.T, r *rand.Rand) {
	for range 3000 {
		p := newPoolModel(r)
		limit, replicas := 1+r.Int32N(3), Total(Sizes(p.shards))
		for range 30 {
			var candidates []Candidate
			if r.IntN(4) == 0 {
				replicas = r.Int32N(20)
			}
			if r.IntN(2) == 0 {
				p.terminate(false)
			}
			shard := p.shards[r.IntN(len(p.shards))]
			if n := len(shard.Reported.Instances); p.machines && n > 0 && r.IntN(3) == 0 {
				candidates = append(candidates, Candidate{ID: shard.Reported.Instances[r.IntN(n)].ID, Shard: shard.ID, Annotated: true})
			}
			total := Total(Sizes(p.shards))
			others := p.step(replicas, limit, candidates)
			if removed := p.beingRemoved(); others > 0 && removed > limit {
				t.Fatalf("%d instances are being removed at once, want at most %d: %+v", removed, limit, p.shards)
			}
			if after := Total(Sizes(p.shards)); replicas >= total && after < replicas {
				t.Fatalf("a scale-up from %d to %d was delayed at %d", total, replicas, after)
			}
		}
		steps := 0
		for ; Total(Sizes(p.shards)) != replicas; steps++ {
			p.terminate(true)
			before := Total(Sizes(p.shards))
			p.step(replicas, limit, nil)
			if after := Total(Sizes(p.shards)); after >= before || steps > 100 {
				t.Fatalf("no progress from %d to %d replicas: %+v", before, replicas, p.shards)
			}
		}
	}
}

// Without a limit, a step is the whole scale-down.
func TestStepsWithoutLimitAreTheWholeScaleDown(t *testing.T) {
	withSeeds(t, testStepsWithoutLimitAreTheWholeScaleDown)
}

func testStepsWithoutLimitAreTheWholeScaleDown(t *testing.T, r *rand.Rand) {
	for range 3000 {
		p, replicas := newPoolModel(r), r.Int32N(20)
		assert.Equal(t, replicas, stepReplicas(p.shards, replicas, Limits{replicas, unlimited}, nil))
		wanted := spread(p.shards, replicas)
		assert.Equal(t, wanted, stepSizes(p.shards, wanted, Limits{replicas, unlimited}))
	}
}
