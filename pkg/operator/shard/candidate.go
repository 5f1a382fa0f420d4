// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"slices"

	"k8s.io/utils/ptr"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Candidate is an instance type in a market (docs/reference.md#candidates).
type Candidate struct {
	// Name identifies the candidate in the group.
	Name string
	// InstanceType is the instance type, "" for the instance type of the template.
	InstanceType string
	// Market is the market, "" for the market that the arguments of the template mean.
	Market string
	// MaxInstances is how many instances of the group may be of the candidate, nil for no maximum.
	// 0 is a maximum.
	MaxInstances *int32
}

// Equal reports whether two candidates are equal.
func (c Candidate) Equal(other Candidate) bool {
	return c.Name == other.Name && c.InstanceType == other.InstanceType && c.Market == other.Market &&
		ptr.Equal(c.MaxInstances, other.MaxInstances)
}

// EqualCandidates reports whether two lists have the same candidates in the same order.
func EqualCandidates(a, b []Candidate) bool { return slices.EqualFunc(a, b, Candidate.Equal) }

// CandidateUse is how many instances of a candidate a group has.
type CandidateUse struct {
	// Name is the name of the candidate.
	Name string
	// InstanceType is the instance type in force, also if it is the instance type of the template.
	InstanceType string
	// Market is the market in force, "" if the provider has no markets.
	Market string
	// Instances is the number of managed instances that are not being deleted.
	Instances int32
	// Unavailable is why the provider creates no instance of the candidate now, "" if nothing is
	// known against it.
	Unavailable string
}

// KnowsCandidates reports whether the server of the group knows candidates.
func (g Group) KnowsCandidates() bool {
	_, unsupported := g.Supported(GroupSettings{Candidates: []Candidate{{}}})
	return len(unsupported) == 0
}

// MaxCandidates is the number of candidates whose use the operator keeps. A server that reports more
// violates the protocol.
const MaxCandidates = 16

func candidatesOf(messages []*nstancev1.Candidate) []Candidate {
	if len(messages) == 0 {
		return nil
	}
	candidates := make([]Candidate, len(messages))
	for i, message := range messages {
		candidates[i] = Candidate{
			Name: message.GetName(), InstanceType: message.GetInstanceType(), Market: message.GetMarket(), MaxInstances: message.MaxInstances,
		}
	}
	return candidates
}

func candidateMessages(candidates []Candidate) []*nstancev1.Candidate {
	if len(candidates) == 0 {
		return nil
	}
	messages := make([]*nstancev1.Candidate, len(candidates))
	for i, candidate := range candidates {
		messages[i] = &nstancev1.Candidate{
			Name: candidate.Name, InstanceType: candidate.InstanceType, Market: candidate.Market, MaxInstances: candidate.MaxInstances,
		}
	}
	return messages
}
