// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package preferred

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/tier"
)

const none = -1

// group returns a group whose candidates have these maxima and numbers of instances.
func group(maxima, use []int32) *shard.Group {
	of := &shard.Group{KnownSettings: 1025}
	for i := range maxima {
		candidate := shard.Candidate{Name: fmt.Sprintf("c%d", i)}
		if maxima[i] != none {
			candidate.MaxInstances = ptr.To(maxima[i])
		}
		of.Candidates = append(of.Candidates, candidate)
	}
	for i := range use {
		of.CandidateUse = append(of.CandidateUse, shard.CandidateUse{
			Name: fmt.Sprintf("c%d", i), InstanceType: fmt.Sprintf("t%d", i), Market: "Spot", Instances: use[i],
		})
	}
	return of
}

func known(id string, group *shard.Group) Shard {
	return Shard{ID: id, Link: Link{Configured: true, Read: true, Connected: true}, Group: group}
}

func TestFallbacks(t *testing.T) {
	for name, test := range map[string]struct{ maxima, use, want []int32 }{
		"all preferred":                         {[]int32{2, none, none}, []int32{2, 7, 0}, []int32{0, 0, 0}},
		"a fallback":                            {[]int32{2, none, none}, []int32{2, 4, 3}, []int32{0, 0, 3}},
		"the base has room for one":             {[]int32{2, none}, []int32{1, 8}, []int32{0, 1}},
		"a maximum that was lowered to 0":       {[]int32{none, 0, none}, []int32{4, 3, 0}, []int32{0, 3, 0}},
		"room for fewer":                        {[]int32{2, 0, none}, []int32{1, 5, 0}, []int32{0, 1, 0}},
		"the last are counted first":            {[]int32{2, none, none}, []int32{1, 4, 3}, []int32{0, 0, 3}},
		"two candidates":                        {[]int32{3, 2, none}, []int32{0, 2, 2}, []int32{0, 1, 2}},
		"a maximum that was lowered":            {[]int32{1, none}, []int32{3, 0}, []int32{0, 0}},
		"above one maximum, below the next one": {[]int32{2, 2, none}, []int32{3, 0, 2}, []int32{0, 0, 2}},
		"a maximum of 0":                        {[]int32{0, none}, []int32{0, 3}, []int32{0, 0}},
		"no instances":                          {[]int32{2, none}, []int32{0, 0}, []int32{0, 0}},
		"numbers below 0":                       {[]int32{-2, none}, []int32{-3, 2}, []int32{0, 0}},
	} {
		of := group(test.maxima, test.use)
		assert.Equal(t, test.want, fallbacks(of.Candidates, of.CandidateUse, 0), name)
	}
}

// A group that grows has room for better candidates, and the missing instances take it, unless there are none.
func TestMissingInstancesTakeTheRoom(t *testing.T) {
	for name, test := range map[string]struct {
		size        int32
		unavailable string
		want        []int32
	}{
		"nothing is missing":               {4, "", []int32{0, 2, 0}},
		"one takes the room of one":        {5, "", []int32{0, 1, 0}},
		"all have room":                    {8, "", []int32{0, 0, 0}},
		"the better one cannot be had":     {8, "no stock", []int32{0, 2, 0}},
		"surplus instances take no room":   {3, "", []int32{0, 2, 0}},
		"a group that is to be empty soon": {0, "", []int32{0, 2, 0}},
	} {
		of := group([]int32{4, none, none}, []int32{2, 2, 0})
		of.Size, of.CandidateUse[0].Unavailable = test.size, test.unavailable
		assert.Equal(t, test.want, fallbacks(of.Candidates, of.CandidateUse, of.Size), name)
	}
	growing := group([]int32{4, none}, []int32{2, 2})
	growing.Size = 8
	assert.Equal(t, v1beta1.ReasonPreferred, Condition([]Shard{known("a", growing)}, false, nil).Reason)
}

// Whatever the numbers are: there is room before each fallback, and when the fallbacks have been
// replaced by instances of the first candidates with room, no instance has room before it.
func TestFallbacksHaveSomethingBetter(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(300, 3000)) {
		random := rand.New(rand.NewPCG(seed, 0))
		maxima, use := make([]int32, 1+random.IntN(4)), []int32(nil)
		for i := range maxima {
			if maxima[i] = random.Int32N(5); random.IntN(4) == 0 || i == len(maxima)-1 {
				maxima[i] = none
			}
			use = append(use, random.Int32N(5))
		}
		of := group(maxima, use)
		found := fallbacks(of.Candidates, of.CandidateUse, 0)
		var rooms, fallbacks int32
		for i, n := range found {
			require.LessOrEqual(t, n, use[i], "seed %d: %v of %v with %v", seed, found, use, maxima)
			fallbacks += n
			require.LessOrEqual(t, fallbacks, rooms, "seed %d: %v of %v with %v", seed, found, use, maxima)
			rooms += min(room(&of.Candidates[i], &of.CandidateUse[i]), 1000)
			of.CandidateUse[i].Instances -= n
		}
		hasRoom := false
		for i := range found {
			n := min(fallbacks, room(&of.Candidates[i], &of.CandidateUse[i]))
			fallbacks -= n
			of.CandidateUse[i].Instances += n
			require.False(t, hasRoom && of.CandidateUse[i].Instances > 0, "seed %d: %v of %v with %v", seed, found, use, maxima)
			hasRoom = hasRoom || room(&of.Candidates[i], &of.CandidateUse[i]) > 0
		}
	}
}

func TestCondition(t *testing.T) {
	best := known("a", group([]int32{1, none}, []int32{1, 2}))
	worse := known("b", group([]int32{1, none, none}, []int32{1, 0, 2}))
	worse.Group.CandidateUse[1].Unavailable = "none left"
	silent := known("s", group([]int32{1, none}, nil))
	renamed := known("n", group([]int32{1, none}, []int32{1, 2}))
	renamed.Group.CandidateUse[0].Name = "other"
	older := known("o", group(nil, nil))
	older.Group.KnownSettings = 1023
	lost, away, unread, unconfigured := best, best, Shard{ID: "u", Link: Link{Configured: true}}, Shard{ID: "x"}
	lost.ID, lost.Link = "l", Link{Configured: true, Lost: true}
	away.ID, away.Connected = "w", false
	several := known("e", group([]int32{1, 1, none, none}, []int32{0, 0, 1, 1}))
	before := &metav1.Condition{Type: v1beta1.ConditionPreferredInstances, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonFallback}

	for name, test := range map[string]struct {
		shards  []Shard
		returns bool
		before  *metav1.Condition
		status  metav1.ConditionStatus
		reason  string
		message string
	}{
		"preferred":        {shards: []Shard{best, known("c", nil)}, status: metav1.ConditionTrue, reason: v1beta1.ReasonPreferred},
		"a fallback":       {shards: []Shard{best, worse}, status: metav1.ConditionFalse, reason: v1beta1.ReasonFallback, message: "2 of 6 instances are t2 Spot (candidate c2): b has no t1 Spot: none left"},
		"several":          {shards: []Shard{several}, returns: true, status: metav1.ConditionFalse, reason: v1beta1.ReasonFallback, message: "1 of 2 instances is t2 Spot (candidate c2), 1 of 2 instances is t3 Spot (candidate c3)"},
		"without a return": {shards: []Shard{several}, status: metav1.ConditionFalse, reason: v1beta1.ReasonFallback, message: "1 of 2 instances is t2 Spot (candidate c2), 1 of 2 instances is t3 Spot (candidate c3): without returnAfterSeconds they stay, also when a better candidate can be had again"},
		"a fallback, and a shard is away": {
			shards: []Shard{worse, away, unread}, before: before, status: metav1.ConditionFalse, reason: v1beta1.ReasonFallback,
			message: "2 of 3 instances are t2 Spot (candidate c2): b has no t1 Spot: none left; not known: w is not connected, u was not read yet",
		},
		"a shard is away":             {shards: []Shard{best, away, older}, before: before, status: metav1.ConditionUnknown, reason: v1beta1.ReasonShardUnreachable, message: "not known: w is not connected, o has a server that does not know candidates"},
		"a shard is lost":             {shards: []Shard{best, lost}, before: before, status: metav1.ConditionUnknown, reason: v1beta1.ReasonShardUnreachable, message: "not known: l is not connected"},
		"an older server":             {shards: []Shard{older, best}, status: metav1.ConditionUnknown, reason: v1beta1.ReasonUnsupportedByServer, message: "not known: o has a server that does not know candidates"},
		"no numbers":                  {shards: []Shard{silent, best}, status: metav1.ConditionUnknown, reason: v1beta1.ReasonNotSynced, message: "not known: s has not reported the numbers of its candidates"},
		"numbers of other candidates": {shards: []Shard{renamed}, status: metav1.ConditionUnknown, reason: v1beta1.ReasonNotSynced, message: "not known: n has not reported the numbers of its candidates"},
		"not configured":              {shards: []Shard{unconfigured, away}, status: metav1.ConditionUnknown, reason: v1beta1.ReasonUnknownShard, message: "not known: x is not configured, w is not connected"},
		"after a start":               {shards: []Shard{best, unread}, before: before},
		"before the first report":     {shards: []Shard{best, unread}, status: metav1.ConditionUnknown, reason: v1beta1.ReasonNotSynced, message: "not known: u was not read yet"},
	} {
		got := Condition(test.shards, test.returns, test.before)
		if test.status == "" {
			assert.Nil(t, got, name)
			continue
		}
		assert.Equal(t, &metav1.Condition{Type: v1beta1.ConditionPreferredInstances, Status: test.status, Reason: test.reason, Message: test.message}, got, name)
	}
	var many []Shard
	for i := range maxReasons + 2 {
		many = append(many, worse)
		many[i].ID = fmt.Sprint("s", i)
	}
	assert.Contains(t, Condition(many, true, nil).Message, "; s3 has no t1 Spot: none left; and 2 more")
}
