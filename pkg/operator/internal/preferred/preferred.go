// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package preferred computes the condition PreferredInstances of a pool with candidates, from
// nothing but what its shards report (docs/reference.md#candidates).
package preferred

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// Link is how well a shard of a pool is known.
type Link struct {
	// Configured reports whether the shard is in the configuration.
	Configured bool
	// Read reports whether its groups were read since the operator started.
	Read bool
	// Connected reports whether it is connected now.
	Connected bool
	// Lost is set if it is known that the shard cannot be reached, and not only that it is being
	// connected.
	Lost bool
}

// Shard is the part of a pool that is on one shard.
type Shard struct {
	ID string
	Link
	// Group is the group of the pool as the shard reports it, nil without a group.
	Group *shard.Group
}

// unknown returns why it is not known of which candidates the instances of a shard are. The reason
// is "" if it is known.
func (s *Shard) unknown() (reason, message string) {
	switch {
	case !s.Configured:
		return v1beta1.ReasonUnknownShard, "is not configured"
	case s.Lost, s.Read && !s.Connected:
		return v1beta1.ReasonShardUnreachable, "is not connected"
	case !s.Read:
		return v1beta1.ReasonNotSynced, "was not read yet"
	case s.Group == nil:
		return "", ""
	case !s.Group.KnowsCandidates():
		return v1beta1.ReasonUnsupportedByServer, "has a server that does not know candidates"
	case !s.reports():
		return v1beta1.ReasonNotSynced, "has not reported the numbers of its candidates"
	}
	return "", ""
}

// reports reports whether the server reports the number of instances of each of its candidates.
func (s *Shard) reports() bool {
	return len(s.Group.CandidateUse) > 0 && slices.EqualFunc(s.Group.CandidateUse, s.Group.Candidates,
		func(use shard.CandidateUse, candidate shard.Candidate) bool { return use.Name == candidate.Name })
}

// fallbacks returns by candidate how many instances are not preferred: an earlier candidate has room
// for them under its maximum. The last candidates are counted first, each for the first room, so that
// these are no more instances than would have to be replaced. The instances that a growing group of this size
// still lacks take the first rooms that can be had, as on the server.
func fallbacks(candidates []shard.Candidate, use []shard.CandidateUse, size int32) []int32 {
	rooms, found := make([]int32, len(use)), make([]int32, len(use))
	missing := size
	for i := range use {
		rooms[i] = room(&candidates[i], &use[i])
		missing -= max(use[i].Instances, 0)
	}
	for i := range use {
		if use[i].Unavailable == "" {
			n := min(rooms[i], max(missing, 0))
			rooms[i] -= n
			missing -= n
		}
	}
	for i := len(use) - 1; i >= 0; i-- {
		for j := range i {
			n := min(rooms[j], max(use[i].Instances, 0)-found[i])
			rooms[j] -= n
			found[i] += n
		}
	}
	return found
}

// room returns how many more instances may be of a candidate.
func room(candidate *shard.Candidate, use *shard.CandidateUse) int32 {
	if candidate.MaxInstances == nil {
		return math.MaxInt32
	}
	return max(*candidate.MaxInstances-max(use.Instances, 0), 0)
}

// maxReasons is how many reasons of shards a message has.
const maxReasons = 4

// report adds up the shards.
type report struct {
	total, fallbacks int32
	// kinds have the types and markets of the instances that are not preferred, in the order of their
	// first occurrence, and counts their numbers.
	kinds  []string
	counts map[string]int32
	// reasons are why shards do not create the better candidates.
	reasons []string
	// unknown names the shards of which nothing is known, and reason is the most serious reason.
	unknown []string
	reason  string
	// unread is set if a shard is being connected, so that the condition will soon be known.
	unread bool
}

// serious orders reasons.
var serious = []string{v1beta1.ReasonNotSynced, v1beta1.ReasonUnsupportedByServer, v1beta1.ReasonShardUnreachable, v1beta1.ReasonUnknownShard}

func (r *report) add(s *Shard) {
	if reason, message := s.unknown(); reason != "" {
		r.unknown = append(r.unknown, fmt.Sprintf("%s %s", s.ID, message))
		if slices.Index(serious, reason) > slices.Index(serious, r.reason) {
			r.reason = reason
		}
		r.unread = r.unread || s.Configured && !s.Read && !s.Lost
		return
	}
	if s.Group == nil {
		return
	}
	use, worst := s.Group.CandidateUse, -1
	for i, n := range fallbacks(s.Group.Candidates, use, s.Group.Size) {
		r.total += max(use[i].Instances, 0)
		if n == 0 {
			continue
		}
		r.fallbacks += n
		worst = i
		kind := fmt.Sprintf("%s (candidate %s)", kindOf(&use[i]), use[i].Name)
		if r.counts[kind] == 0 {
			r.kinds = append(r.kinds, kind)
		}
		r.counts[kind] += n
	}
	for i := range max(worst, 0) {
		if use[i].Unavailable != "" && room(&s.Group.Candidates[i], &use[i]) > 0 {
			r.reasons = append(r.reasons, fmt.Sprintf("%s has no %s: %s", s.ID, kindOf(&use[i]), use[i].Unavailable))
		}
	}
}

// kindOf returns instance type and market of a candidate, or its name.
func kindOf(use *shard.CandidateUse) string {
	return cmp.Or(strings.TrimSpace(use.InstanceType+" "+use.Market), use.Name)
}

// Condition returns the condition PreferredInstances of a pool, nil if it stays as it is: shards are
// being connected after a start of the operator, and before has the condition from before. returns is
// set if the pool has returnAfterSeconds.
func Condition(shards []Shard, returns bool, before *metav1.Condition) *metav1.Condition {
	r := report{counts: map[string]int32{}}
	for i := range shards {
		r.add(&shards[i])
	}
	condition := metav1.Condition{Type: v1beta1.ConditionPreferredInstances, Status: metav1.ConditionTrue, Reason: v1beta1.ReasonPreferred}
	switch {
	case r.fallbacks > 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1beta1.ReasonFallback, r.message(returns)
	case r.unread && before != nil:
		return nil
	case r.reason != "":
		condition.Status, condition.Reason = metav1.ConditionUnknown, r.reason
		condition.Message = "not known: " + strings.Join(r.unknown, ", ")
	}
	return &condition
}

func (r *report) message(returns bool) string {
	var parts []string
	for _, kind := range r.kinds {
		verb := "are"
		if r.counts[kind] == 1 {
			verb = "is"
		}
		parts = append(parts, fmt.Sprintf("%d of %d instances %s %s", r.counts[kind], r.total, verb, kind))
	}
	text := strings.Join(parts, ", ")
	switch more := len(r.reasons) - maxReasons; {
	case more > 0:
		text += fmt.Sprintf(": %s; and %d more", strings.Join(r.reasons[:maxReasons], "; "), more)
	case len(r.reasons) > 0:
		text += ": " + strings.Join(r.reasons, "; ")
	case !returns:
		text += ": without returnAfterSeconds they stay, also when a better candidate can be had again"
	}
	if len(r.unknown) > 0 {
		text += "; not known: " + strings.Join(r.unknown, ", ")
	}
	return text
}
