// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestChange(t *testing.T) {
	victims := func(shards ...int) []Victim {
		var chosen []Victim
		for _, shard := range shards {
			chosen = append(chosen, Victim{Shard: shard})
		}
		return chosen
	}
	for name, c := range map[string]struct {
		sizes    []int32
		replicas int32
		victims  []Victim
		absent   []int32
		want     []int32
		chosen   int
	}{
		"nothing to change":                        {[]int32{1, 3}, 4, victims(1), nil, []int32{1, 3}, 0},
		"the victim's shard shrinks":               {[]int32{2, 1}, 2, victims(1), nil, []int32{2, 0}, 1},
		"what is left over comes from the largest": {[]int32{4, 2, 2}, 5, victims(2), nil, []int32{2, 2, 1}, 1},
		"of equal ones the last one shrinks":       {[]int32{2, 2, 2}, 4, nil, nil, []int32{2, 1, 1}, 0},
		"the smallest grows first":                 {[]int32{3, 0, 1}, 7, nil, nil, []int32{3, 2, 2}, 0},
		"of equal ones the first one grows":        {[]int32{1, 1, 1}, 5, nil, nil, []int32{2, 2, 1}, 0},
		"more victims than are too many":           {[]int32{3, 3}, 5, victims(1, 0), nil, []int32{3, 2}, 1},
		"a growth ignores victims":                 {[]int32{1, 1}, 3, victims(0), nil, []int32{2, 1}, 0},
		"a shard that has nothing to give":         {[]int32{0, 2}, 1, victims(0), nil, []int32{0, 1}, 0},
		"a shard that is not listed":               {[]int32{1, 1}, 1, victims(2, -1), nil, []int32{1, 0}, 0},
		"from nothing":                             {[]int32{0, 0, 0}, 4, nil, nil, []int32{2, 1, 1}, 0},
		"to nothing":                               {[]int32{5, 0, 2}, 0, victims(2), nil, []int32{0, 0, 0}, 1},
		"negative is nothing":                      {[]int32{1}, -1, nil, nil, []int32{0}, 0},
		"no shards":                                {nil, 3, nil, nil, nil, 0},
		"what is not there goes before what is":    {[]int32{3, 1}, 3, nil, []int32{0, 1}, []int32{3, 0}, 0},
		"a victim goes before what is not there":   {[]int32{3, 1}, 3, victims(0), []int32{0, 1}, []int32{2, 1}, 1},
		"what is not there leaves the largest":     {[]int32{3, 5, 4}, 9, nil, []int32{3, 2, 3}, []int32{3, 3, 3}, 0},
		"not more than is not there, and the rest": {[]int32{6, 2, 2}, 6, nil, []int32{0, 1, 2}, []int32{5, 1, 0}, 0},
		"no more is not there than is to be":       {[]int32{2, 2}, 1, nil, []int32{0, 7}, []int32{1, 0}, 0},
		"a growth ignores what is not there":       {[]int32{2, 1}, 4, nil, []int32{2, 1}, []int32{2, 2}, 0},
		"absent less than nothing":                 {[]int32{2, 1}, 2, nil, []int32{0, -4}, []int32{1, 1}, 0},
		"the largest int32":                        {[]int32{0, 5}, math.MaxInt32, nil, nil, []int32{math.MaxInt32/2 + 1, math.MaxInt32 / 2}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(c.sizes)
			got, chosen := Change(c.sizes, c.replicas, c.victims, c.absent)
			if !slices.Equal(got, c.want) || len(chosen) != c.chosen {
				t.Errorf("Change(%v, %d) = %v with %d victims, want %v with %d", c.sizes, c.replicas, got, len(chosen), c.want, c.chosen)
			}
			if !slices.Equal(c.sizes, before) {
				t.Error("the argument was changed")
			}
		})
	}
}

// Whatever the sizes and whoever goes: they add up, victims are respected, no
// instance moves without need, and what is left over never makes the shards more
// uneven.
func TestChangeProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		sizes := make([]int32, 1+random.IntN(6))
		for i := range sizes {
			sizes[i] = random.Int32N(8)
		}
		before := sum(sizes)
		var victims []Victim
		for range random.IntN(6) {
			victims = append(victims, Victim{Shard: random.IntN(len(sizes))})
		}
		absent := make([]int32, len(sizes))
		for i := range absent {
			absent[i] = random.Int32N(sizes[i] + 1)
		}
		replicas := random.Int32N(before + 10)
		got, chosen := Change(sizes, replicas, victims, absent)
		if sum(got) != replicas {
			t.Fatalf("Change(%v, %d, %v) = %v adds up to %d", sizes, replicas, victims, got, sum(got))
		}
		for i := range got {
			if got[i] < 0 || replicas >= before && got[i] < sizes[i] || replicas <= before && got[i] > sizes[i] {
				t.Fatalf("Change(%v, %d, %v) = %v moves an instance without need", sizes, replicas, victims, got)
			}
		}
		left := expectRespected(t, sizes, replicas, victims, chosen)
		expectAbsentFirst(t, left, absent, got)
		if replicas > before && spreadOf(got) > max(1, spreadOf(sizes)) {
			t.Fatalf("Change(%v, %d) = %v is more uneven", sizes, replicas, got)
		}
	}
}

// expectRespected expects that those who go come first, in their order, as far as
// their shards have them. It returns what they leave.
func expectRespected(t *testing.T, sizes []int32, replicas int32, victims, chosen []Victim) (left []int32) {
	t.Helper()
	left = slices.Clone(sizes)
	surplus := sum(sizes) - replicas
	var want []Victim
	for _, victim := range victims {
		if surplus > 0 && left[victim.Shard] > 0 {
			left[victim.Shard]--
			surplus--
			want = append(want, victim)
		}
	}
	if !slices.Equal(chosen, want) {
		t.Fatalf("Change(%v, %d, %v) has chosen %v, want %v", sizes, replicas, victims, chosen, want)
	}
	return left
}

// expectAbsentFirst expects that what is still too many without the victims comes
// one by one from the largest shard that does not have all it is to have, and then
// from the largest.
func expectAbsentFirst(t *testing.T, left, absent, got []int32) {
	t.Helper()
	want, absent := slices.Clone(left), slices.Clone(absent)
	for surplus := sum(left) - sum(got); surplus > 0; surplus-- {
		from := -1
		for i := range want {
			better := from < 0 || absent[i] > 0 && absent[from] <= 0 || (absent[i] > 0) == (absent[from] > 0) && want[i] >= want[from]
			if want[i] > 0 && better {
				from = i
			}
		}
		want[from]--
		absent[from]--
	}
	if sum(left) >= sum(got) && !slices.Equal(got, want) {
		t.Fatalf("%v without the victims, of which %v are not there, has become %v, want %v", left, absent, got, want)
	}
}

// From what Even gives, every change leads to what Even gives. From anything else
// it does as soon as every shard has grown.
func TestChangeConvergesToEven(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		shards, replicas := 1+random.IntN(6), random.Int32N(40)
		for next := range int32(40) {
			if got, _ := Change(Even(replicas, shards), next, nil, nil); !slices.Equal(got, Even(next, shards)) {
				t.Fatalf("Change(%v, %d) = %v, want what Even gives, %v", Even(replicas, shards), next, got, Even(next, shards))
			}
		}
		skewed := make([]int32, shards)
		for i := range skewed {
			skewed[i] = random.Int32N(20)
		}
		enough := slices.Max(skewed) * int32(shards)
		if got, _ := Change(skewed, enough, nil, nil); !slices.Equal(got, Even(enough, shards)) {
			t.Fatalf("Change(%v, %d) = %v, want what Even gives, %v", skewed, enough, got, Even(enough, shards))
		}
	}
}

// Many small changes lead to where one large one does.
func TestChangeInSteps(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		sizes := make([]int32, 1+random.IntN(6))
		for i := range sizes {
			sizes[i] = random.Int32N(12)
		}
		goal := random.Int32N(sum(sizes) + 20)
		want, _ := Change(sizes, goal, nil, nil)
		got := sizes
		for sum(got) != goal {
			step := int32(1)
			if sum(got) > goal {
				step = -1
			}
			got, _ = Change(got, sum(got)+step, nil, nil)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("from %v to %d one by one gives %v, at once %v", sizes, goal, got, want)
		}
	}
}

func sum(sizes []int32) (total int32) {
	for _, size := range sizes {
		total += size
	}
	return total
}

func spreadOf(sizes []int32) int32 { return slices.Max(sizes) - slices.Min(sizes) }
