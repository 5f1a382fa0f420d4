// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"cmp"
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

func TestSortCandidates(t *testing.T) {
	annotated := func(id, shard, at string) Candidate {
		return Candidate{ID: id, Shard: shard, Annotated: true, Annotation: at}
	}
	deleting := func(id, shard string) Candidate { return Candidate{ID: id, Shard: shard} }
	for name, test := range map[string]struct {
		candidates []Candidate
		change     func([]Shard)
		want       string
	}{
		"none":                       {nil, nil, ""},
		"the annotated one":          {[]Candidate{annotated("a2", "a", "now")}, nil, "a2"},
		"the earliest first":         {[]Candidate{annotated("a1", "a", "2026-11-21 10:00:02"), annotated("b1", "b", "2026-11-21 10:00:01")}, nil, "b1 a1"},
		"of the same time by name":   {[]Candidate{annotated("b2", "b", ""), annotated("a1", "a", ""), annotated("b1", "b", "")}, nil, "a1 b1 b2"},
		"the ones in deletion later": {[]Candidate{deleting("b2", "b"), deleting("b1", "b"), annotated("a1", "a", "")}, nil, "a1 b1 b2"},
		"one that an earlier scale-down selected": {[]Candidate{annotated("a1", "a", ""), annotated("a2", "a", "")}, func(shards []Shard) {
			shards[1].RemoveFirst = []string{"a1"}
		}, "a2"},
		"one that was terminated and replaced": {[]Candidate{deleting("a9", "a"), annotated("a2", "a", "")}, nil, "a2"},
		"terminating ones": {[]Candidate{deleting("a1", "a"), deleting("a2", "a")}, func(shards []Shard) {
			shards[1].Reported.Instances[0].Terminating = true
			shards[1].Reported.Instances[1].Terminating = true
		}, ""},
		"on a shard that has not synced none is known to be terminated": {[]Candidate{annotated("a9", "a", "")}, func(shards []Shard) {
			shards[1].Synced, shards[1].Reported = false, nil
		}, "a9"},
		"nor on a server that lists none": {[]Candidate{annotated("a9", "a", "")}, func(shards []Shard) {
			shards[1].Reported = &Group{}
		}, "a9"},
		"one with two Machines once":                 {[]Candidate{annotated("a1", "a", "2"), annotated("b1", "b", "1"), deleting("a1", "a")}, nil, "b1 a1"},
		"one on a shard that the pool does not name": {[]Candidate{annotated("c1", "c", "")}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			shards := []Shard{
				{ID: "b", Size: 2, HasShardGroup: true, Synced: true, Reported: groupOf("b1", "b2")},
				{ID: "a", Size: 2, HasShardGroup: true, Synced: true, Reported: groupOf("a1", "a2")},
			}
			if test.change != nil {
				test.change(shards)
			}
			var got []string
			for _, candidate := range sortCandidates(shards, test.candidates) {
				got = append(got, candidate.ID)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %q, want %q", got, test.want)
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
// candidates before the others. It returns the sizes without them.
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

func TestEven(t *testing.T) {
	for name, c := range map[string]struct {
		replicas int32
		shards   int
		want     []int32
	}{
		"ten over three":          {10, 3, []int32{4, 3, 3}},
		"four over three":         {4, 3, []int32{2, 1, 1}},
		"five over two":           {5, 2, []int32{3, 2}},
		"fewer than shards":       {1, 3, []int32{1, 0, 0}},
		"nothing":                 {0, 3, []int32{0, 0, 0}},
		"one shard":               {7, 1, []int32{7}},
		"negative counts as zero": {-3, 2, []int32{0, 0}},
		"no shards":               {3, 0, nil},
		"negative shards":         {3, -1, nil},
		"the largest int32":       {math.MaxInt32, 2, []int32{math.MaxInt32/2 + 1, math.MaxInt32 / 2}},
		"more shards than usual":  {3, 5, []int32{1, 1, 1, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := even(c.replicas, c.shards); !slices.Equal(got, c.want) {
				t.Errorf("even(%d, %d) = %v, want %v", c.replicas, c.shards, got, c.want)
			}
		})
	}
}

// For any input the shares add up, differ by at most one, and never increase
// along the list.
func TestEvenProperties(t *testing.T) {
	withSeeds(t, func(t *testing.T, random *rand.Rand) {
		for range 1000 {
			replicas, shards := random.Int32N(1<<16), 1+random.IntN(1<<8)
			sizes := even(replicas, shards)
			if len(sizes) != shards || Total(sizes) != replicas || sizes[0]-sizes[shards-1] > 1 || !slices.IsSortedFunc(sizes, descending) {
				t.Fatalf("even(%d, %d) = %v", replicas, shards, sizes)
			}
		}
	})
}

func descending(a, b int32) int { return cmp.Compare(b, a) }

// fixed returns shards whose listed indexes are fixed.
func fixed(shards []Shard, indexes ...int) []Shard {
	for _, i := range indexes {
		shards[i].Fixed = true
	}
	return shards
}

func TestSpreadKeepsFixedShards(t *testing.T) {
	for name, test := range map[string]struct {
		sizes    []int32
		fixed    []int
		replicas int32
		want     []int32
	}{
		"none is fixed":             {[]int32{9, 0, 0}, nil, 10, []int32{4, 3, 3}},
		"the first is fixed":        {[]int32{2, 0, 0}, []int{0}, 9, []int32{2, 4, 3}},
		"the last is fixed":         {[]int32{0, 0, 2}, []int{2}, 9, []int32{4, 3, 2}},
		"all are fixed":             {[]int32{1, 2, 3}, []int{0, 1, 2}, 9, []int32{1, 2, 3}},
		"fixed ones have all":       {[]int32{5, 1, 1}, []int{0}, 4, []int32{5, 0, 0}},
		"negative replicas":         {[]int32{5, 1, 1}, []int{0}, -4, []int32{5, 0, 0}},
		"sizes of an even division": {[]int32{4, 3, 3}, []int{0}, 10, []int32{4, 3, 3}},
	} {
		if got := spread(fixed(shardsOf(test.sizes, nil), test.fixed...), test.replicas); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

func TestScaleKeepsFixedShards(t *testing.T) {
	for name, test := range map[string]struct {
		fixed      []int
		replicas   int32
		candidates []Candidate
		want       []int32
	}{
		"scaled up":                         {[]int{1}, 12, nil, []int32{6, 1, 5}},
		"scaled down":                       {[]int{0}, 6, nil, []int32{4, 1, 1}},
		"scaled below the fixed":            {[]int{0}, 2, nil, []int32{4, 0, 0}},
		"all are fixed":                     {[]int{0, 1, 2}, 12, nil, []int32{4, 1, 5}},
		"a candidate is on a fixed shard":   {[]int{0}, 9, candidatesOn(0), []int32{3, 1, 5}},
		"one candidate, two are to be less": {[]int{0}, 8, candidatesOn(0), []int32{3, 1, 4}},
	} {
		shards := fixed(shardsOf([]int32{4, 1, 5}, []int32{0, 0, 0}), test.fixed...)
		got, _ := scale(shards, test.replicas, test.candidates)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
