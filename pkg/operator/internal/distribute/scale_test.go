// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/tier"
)

// shardsOf returns shards "0", "1" and so on with these sizes. A server was not sent
// the last instances of its shard, as many as notYetSent has for it.
func shardsOf(sizes, notYetSent []int32) []Shard {
	shards := make([]Shard, len(sizes))
	for i, size := range sizes {
		shards[i] = Shard{ID: strconv.Itoa(i), Size: size, HasShardGroup: true}
		if notYetSent == nil {
			continue
		}
		var ids []string
		for n := range size - notYetSent[i] {
			ids = append(ids, fmt.Sprintf("%d-%d", i, n))
		}
		shards[i].Synced, shards[i].Reported = true, groupOf(ids...)
	}
	return shards
}

// groupOf returns a group with running instances.
func groupOf(ids ...string) *Group {
	group := &Group{Size: int32(len(ids)), ListsInstances: true}
	for _, id := range ids {
		group.Instances = append(group.Instances, Instance{ID: id})
	}
	return group
}

func candidatesOn(shards ...int) []Candidate {
	var candidates []Candidate
	for n, shard := range shards {
		candidates = append(candidates, Candidate{ID: fmt.Sprintf("%d-%d", shard, n), Shard: strconv.Itoa(shard), Annotated: true})
	}
	return candidates
}

func TestScale(t *testing.T) {
	tests := map[string]struct {
		sizes      []int32
		replicas   int32
		candidates []Candidate
		notYetSent []int32
		want       []int32
		selected   int
	}{
		"nothing to change":                        {sizes: []int32{1, 3}, replicas: 4, candidates: candidatesOn(1), want: []int32{1, 3}},
		"the candidate's shard shrinks":            {sizes: []int32{2, 1}, replicas: 2, candidates: candidatesOn(1), want: []int32{2, 0}, selected: 1},
		"the remaining surplus is on the largest":  {sizes: []int32{4, 2, 2}, replicas: 5, candidates: candidatesOn(2), want: []int32{2, 2, 1}, selected: 1},
		"of equal shards the last one shrinks":     {sizes: []int32{2, 2, 2}, replicas: 4, want: []int32{2, 1, 1}},
		"the smallest shard grows first":           {sizes: []int32{3, 0, 1}, replicas: 7, want: []int32{3, 2, 2}},
		"of equal shards the first one grows":      {sizes: []int32{1, 1, 1}, replicas: 5, want: []int32{2, 2, 1}},
		"more candidates than the surplus":         {sizes: []int32{3, 3}, replicas: 5, candidates: candidatesOn(1, 0), want: []int32{2, 3}, selected: 1},
		"a scale-up ignores candidates":            {sizes: []int32{1, 1}, replicas: 3, candidates: candidatesOn(0), want: []int32{2, 1}},
		"an empty shard has no candidate":          {sizes: []int32{0, 2}, replicas: 1, candidates: candidatesOn(0), want: []int32{0, 1}},
		"a candidate on a shard that is not named": {sizes: []int32{1, 1}, replicas: 1, candidates: candidatesOn(2), want: []int32{1, 0}},
		"from zero":                                {sizes: []int32{0, 0, 0}, replicas: 4, want: []int32{2, 1, 1}},
		"to zero":                                  {sizes: []int32{5, 0, 2}, replicas: 0, candidates: candidatesOn(2), want: []int32{0, 0, 0}, selected: 1},
		"negative replicas count as zero":          {sizes: []int32{1}, replicas: -1, want: []int32{0}},
		"no shards":                                {replicas: 3},
		"missing instances before running ones":    {sizes: []int32{3, 1}, replicas: 3, notYetSent: []int32{0, 1}, want: []int32{3, 0}},
		"a candidate before missing instances":     {sizes: []int32{3, 1}, replicas: 3, candidates: candidatesOn(0), notYetSent: []int32{0, 1}, want: []int32{2, 1}, selected: 1},
		"missing instances of the largest shard":   {sizes: []int32{3, 5, 4}, replicas: 9, notYetSent: []int32{3, 2, 3}, want: []int32{3, 3, 3}},
		"missing instances, then running ones":     {sizes: []int32{6, 2, 2}, replicas: 6, notYetSent: []int32{0, 1, 2}, want: []int32{5, 1, 0}},
		"not more missing instances than the size": {sizes: []int32{2, 2}, replicas: 1, notYetSent: []int32{0, 2}, want: []int32{1, 0}},
		"a scale-up ignores missing instances":     {sizes: []int32{2, 1}, replicas: 4, notYetSent: []int32{2, 1}, want: []int32{2, 2}},
		"more instances than the size":             {sizes: []int32{2, 1}, replicas: 2, notYetSent: []int32{0, -4}, want: []int32{1, 1}},
		"up to the largest int32":                  {sizes: []int32{0, 5}, replicas: math.MaxInt32, want: []int32{math.MaxInt32/2 + 1, math.MaxInt32 / 2}},
		"down from the largest int32":              {sizes: []int32{math.MaxInt32 - 5, 5, 0}, replicas: 7, want: []int32{4, 3, 0}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			shards := shardsOf(test.sizes, test.notYetSent)
			before := shardsOf(test.sizes, test.notYetSent)
			got, selected := scale(shards, test.replicas, test.candidates)
			if !slices.Equal(got, test.want) || len(slices.Concat(selected...)) != test.selected {
				t.Errorf("got sizes %v and selected %q, want %v and %d", got, selected, test.want, test.selected)
			}
			if !reflect.DeepEqual(shards, before) {
				t.Error("the argument was changed")
			}
		})
	}
}

// withSeeds runs a test with random numbers from several seeds.
func withSeeds(t *testing.T, test func(*testing.T, *rand.Rand)) {
	t.Helper()
	for _, seed := range tier.Seeds(t, tier.Pick(1, 10)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { test(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

// For all sizes and candidates: the sizes add up, candidates are removed first, no
// instance moves without need, and a scale-up never makes the shards more uneven.
func TestScaleProperties(t *testing.T) { withSeeds(t, testScaleProperties) }

func testScaleProperties(t *testing.T, random *rand.Rand) {
	for range 20000 {
		sizes := make([]int32, 1+random.IntN(6))
		notYetSent := make([]int32, len(sizes))
		var candidates []Candidate
		for i := range sizes {
			sizes[i] = random.Int32N(8)
			notYetSent[i] = random.Int32N(sizes[i] + 1)
			for n := range sizes[i] - notYetSent[i] {
				if random.IntN(4) == 0 {
					candidates = append(candidates, Candidate{ID: fmt.Sprintf("%d-%d", i, n), Shard: strconv.Itoa(i), Annotated: random.IntN(2) == 0})
				}
			}
		}
		random.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
		before := Total(sizes)
		replicas := random.Int32N(before + 10)
		got, selected := scale(shardsOf(sizes, notYetSent), replicas, candidates)
		if Total(got) != replicas {
			t.Fatalf("scale(%v, %d, %v) = %v adds up to %d", sizes, replicas, candidates, got, Total(got))
		}
		for i := range got {
			if got[i] < 0 || replicas >= before && got[i] < sizes[i] || replicas <= before && got[i] > sizes[i] {
				t.Fatalf("scale(%v, %d, %v) = %v moves an instance without need", sizes, replicas, candidates, got)
			}
		}
		left := expectCandidatesFirst(t, sizes, replicas, candidates, selected)
		expectShortfallFirst(t, left, notYetSent, got)
		if replicas > before && spreadOf(got) > max(1, spreadOf(sizes)) {
			t.Fatalf("scale(%v, %d) = %v is more uneven", sizes, replicas, got)
		}
	}
}

// expectCandidatesFirst expects that the candidates are removed first, the annotated
// ones before the others. It returns the sizes without them.
func expectCandidatesFirst(t *testing.T, sizes []int32, replicas int32, candidates []Candidate, selected [][]string) (left []int32) {
	t.Helper()
	left = slices.Clone(sizes)
	surplus := max(Total(sizes)-replicas, 0)
	want := make([][]string, len(sizes))
	slices.SortFunc(candidates, func(a, b Candidate) int { return strings.Compare(a.ID, b.ID) })
	for _, annotated := range []bool{true, false} {
		for _, candidate := range candidates {
			if i, err := strconv.Atoi(candidate.Shard); err != nil {
				t.Fatal(err)
			} else if surplus > 0 && candidate.Annotated == annotated {
				left[i]--
				surplus--
				want[i] = append(want[i], candidate.ID)
			}
		}
	}
	require.Equal(t, want, selected, "scale(%v, %d, %v) selected", sizes, replicas, candidates)
	return left
}

// expectShortfallFirst expects that the rest of the surplus is removed one by one
// from the largest shard with missing instances, and then from the largest one.
func expectShortfallFirst(t *testing.T, left, missing, got []int32) {
	t.Helper()
	want, missing := slices.Clone(left), slices.Clone(missing)
	for surplus := Total(left) - Total(got); surplus > 0; surplus-- {
		from := -1
		for i := range want {
			better := from < 0 || missing[i] > 0 && missing[from] <= 0 || (missing[i] > 0) == (missing[from] > 0) && want[i] >= want[from]
			if want[i] > 0 && better {
				from = i
			}
		}
		want[from]--
		missing[from]--
	}
	if Total(left) >= Total(got) && !slices.Equal(got, want) {
		t.Fatalf("%v without the candidates, of which %v are missing, became %v, want %v", left, missing, got, want)
	}
}

// With many shards and large sizes, only the largest shrink and only the smallest grow,
// down or up to a common level.
func TestScaleLargeSizes(t *testing.T) { withSeeds(t, testScaleLargeSizes) }

func testScaleLargeSizes(t *testing.T, random *rand.Rand) {
	for range 500 {
		sizes := make([]int32, 64)
		for i := range sizes {
			sizes[i] = random.Int32N(1 << 24)
		}
		replicas := random.Int32N(2 * Total(sizes))
		got, _ := scale(shardsOf(sizes, nil), replicas, nil)
		if Total(got) != replicas {
			t.Fatalf("scale(%v, %d) = %v adds up to %d", sizes, replicas, got, Total(got))
		}
		for i := range got {
			if got[i] < sizes[i] && got[i] < slices.Max(got)-1 || got[i] > sizes[i] && got[i] > slices.Min(got)+1 {
				t.Fatalf("scale(%v, %d) = %v changes the wrong shards", sizes, replicas, got)
			}
		}
	}
}

// From the result of even, every change leads to the result of even. From any other
// sizes it does once every shard has grown.
func TestScaleConvergesToEven(t *testing.T) { withSeeds(t, testScaleConvergesToEven) }

func testScaleConvergesToEven(t *testing.T, random *rand.Rand) {
	for range 2000 {
		shards, replicas := 1+random.IntN(6), random.Int32N(40)
		for next := range int32(40) {
			if got, _ := scale(shardsOf(even(replicas, shards), nil), next, nil); !slices.Equal(got, even(next, shards)) {
				t.Fatalf("scale(%v, %d) = %v, want %v as of even", even(replicas, shards), next, got, even(next, shards))
			}
		}
		skewed := make([]int32, shards)
		for i := range skewed {
			skewed[i] = random.Int32N(20)
		}
		enough := slices.Max(skewed) * int32(shards)
		if got, _ := scale(shardsOf(skewed, nil), enough, nil); !slices.Equal(got, even(enough, shards)) {
			t.Fatalf("scale(%v, %d) = %v, want %v as of even", skewed, enough, got, even(enough, shards))
		}
	}
}

// Many small changes have the same result as one large change.
func TestScaleInSteps(t *testing.T) { withSeeds(t, testScaleInSteps) }

func testScaleInSteps(t *testing.T, random *rand.Rand) {
	for range 2000 {
		sizes := make([]int32, 1+random.IntN(6))
		for i := range sizes {
			sizes[i] = random.Int32N(12)
		}
		goal := random.Int32N(Total(sizes) + 20)
		want, _ := scale(shardsOf(sizes, nil), goal, nil)
		got := sizes
		for Total(got) != goal {
			step := int32(1)
			if Total(got) > goal {
				step = -1
			}
			got, _ = scale(shardsOf(got, nil), Total(got)+step, nil)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("from %v to %d one by one gives %v, at once %v", sizes, goal, got, want)
		}
	}
}

func spreadOf(sizes []int32) int32 { return slices.Max(sizes) - slices.Min(sizes) }
