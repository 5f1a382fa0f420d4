// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/stock"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
)

// stockInterval is how often a provider is asked whether a better candidate is available, for a group
// that could return to it. The provider answers from memory.
const stockInterval = time.Minute

// errNotBetter means that no better candidate is available for the replacement of an instance.
var errNotBetter = errors.New("no better candidate is available")

// observeStock adds the candidates of the group to the input of a plan. A candidate whose requests would
// be rejected at present counts as rejected: no instance may leave for it.
func (r *reconciliation) observeStock(s *state, now time.Time) {
	r.Stock.Observe(r.group, now)
	s.setCandidates(r.group, r.Stock)
	if s.returnAfter == 0 || len(s.choices) == 0 {
		return
	}
	worst := slices.Max(append(candidates.Assign(s.choices, stock.Staying(s.instances)), 0))
	for n := range worst {
		v := &r.group.Variants[n]
		lack := r.lackOf(v)
		if lack == "" {
			continue
		}
		r.outcome.within(stockInterval)
		known := r.Stock.Message(r.key, v.InfraConfigHash, s.instances)
		if known != "" {
			lack = known
		}
		if r.Stock.Rejected(r.key, v.InfraConfigHash, lack, s.instances, now) {
			r.outcome.reordered = true
		}
		s.freeSince[n] = now
	}
}

// lackOf returns why the provider would reject a candidate in every subnet of the group, "" if it would
// not.
func (r *reconciliation) lackOf(v *groups.Variant) string {
	var reasons lacks
	for _, subnet := range r.subnets(r.group.SubnetPools) {
		if !reasons.add(r.checkCapacity(r.group.As(*v), subnet)) {
			return ""
		}
	}
	return reasons.String()
}

// checkCapacity returns the error with which the provider would reject an instance of a group without
// a call, nil if that is not known.
func (r *reconciliation) checkCapacity(group *groups.Group, subnet string) error {
	checker, ok := r.Provider.(provider.CapacityChecker)
	if !ok {
		return nil
	}
	spec := provision.Common(group)
	spec.Subnet = subnet
	return checker.CheckCapacity(spec)
}

// subnets returns the subnets of pools in the order in which they are tried.
func (r *reconciliation) subnets(pools []string) []string {
	var subnets []string
	for _, pool := range pools {
		subnets = append(subnets, r.config.Shard.SubnetPools[pool]...)
	}
	return subnets
}

// lacks are the different reasons for which candidates lack capacity, in the order in which they were
// found.
type lacks []string

// add adds the reason of a CapacityError, and returns false for any other error and for nil.
func (l *lacks) add(err error) bool {
	lack, ok := provider.AsCapacityError(err)
	if !ok {
		return false
	}
	reason := strings.TrimPrefix(lack.Error(), provider.OutOfCapacity("").Error())
	if !slices.Contains(*l, reason) {
		*l = append(*l, reason)
	}
	return true
}

// String returns the reasons as the text of one error.
func (l lacks) String() string {
	if len(l) == 0 {
		return ""
	}
	return provider.OutOfCapacity("%s", strings.Join(l, "; ")).Error()
}

// createCandidate creates an instance of the best candidate that the provider accepts. It tries each
// candidate in each subnet, and goes on only after a request that was certainly rejected for lack of
// capacity. The choice is made at each attempt. record is nil for a new managed instance: its record is
// stored before the first request, and none if the provider is known to reject all.
func (r *reconciliation) createCandidate(ctx context.Context, a action, record *instance.Record, now time.Time) error {
	id, pools := "", r.group.SubnetPools
	if record != nil {
		id = record.ID
		effective, err := provision.Effective(r.config, r.group, record)
		if err != nil {
			return r.failed(id, err)
		}
		pools = effective.SubnetPools
	}
	subnets, err := r.freeSubnets(ctx, pools)
	if err != nil {
		return r.failed(id, err)
	}
	var all lacks
	for _, v := range r.candidateOrder(a, record) {
		created, reasons, err := r.tryCandidate(ctx, a, v, &record, subnets, now)
		if created {
			return nil
		}
		if err != nil {
			if record != nil {
				id = record.ID
			}
			return r.failed(id, err)
		}
		if len(subnets) == 0 {
			reasons.add(provider.OutOfCapacity("no subnet of pool %s has capacity left", strings.Join(pools, ", ")))
		}
		r.Stock.Rejected(r.key, v.InfraConfigHash, reasons.String(), r.Instances.List(r.key), now)
		for _, reason := range reasons {
			all.add(provider.OutOfCapacity("%s", reason))
		}
	}
	if a.below > 0 {
		return errNotBetter
	}
	if record != nil {
		id = record.ID
	}
	return r.failed(id, provider.OutOfCapacity("%s", strings.Join(all, "; ")))
}

// tryCandidate tries one candidate in each subnet. Without an error and without an instance the provider
// has certainly rejected it, for the returned reasons. It sets record if it stores one.
func (r *reconciliation) tryCandidate(
	ctx context.Context, a action, v *groups.Variant, record **instance.Record, subnets []string, now time.Time,
) (created bool, reasons lacks, err error) {
	for _, subnet := range subnets {
		// A request that may have had an effect is made again as it was. The provider knows whether the
		// machine exists, and keeps its type.
		if *record == nil || !r.mayExist((*record).ID, v) {
			if reasons.add(r.checkCapacity(r.group.As(*v), subnet)) {
				continue
			}
		}
		if *record == nil {
			added, err := r.newRecord(v.InfraConfigHash, now)
			if err == nil {
				err = r.store(ctx, a, added)
			}
			if err != nil {
				return false, nil, err
			}
			*record = added
		}
		as := **record
		as.InfraConfigHash = v.InfraConfigHash
		r.attempts.setCandidate(as.ID, v.InfraConfigHash)
		err := r.createInSubnet(ctx, &as, subnet)
		if err == nil {
			return true, nil, nil
		}
		if !reasons.add(err) {
			return false, nil, err
		}
		r.attempts.setCandidate(as.ID, "")
	}
	return false, reasons, nil
}

// mayExist reports whether the machine of a candidate was requested for an instance, and the provider
// has neither accepted nor certainly rejected it: it waits for the same request.
func (r *reconciliation) mayExist(id string, v *groups.Variant) bool {
	renewer, ok := r.Provider.(provider.Renewer)
	hash, _ := r.attempts.candidate(id)
	return ok && hash == v.InfraConfigHash && renewer.Renews(id)
}

// freeSubnets returns the subnets with capacity, in the order in which they are tried. The capacity of a
// subnet may be unknown. That matters only if no other subnet has capacity.
func (r *reconciliation) freeSubnets(ctx context.Context, pools []string) ([]string, error) {
	if len(pools) == 0 {
		return nil, errors.New("the group has no subnet pool")
	}
	var free []string
	var unknown error
	for _, subnet := range r.subnets(pools) {
		var capacity int
		err := r.call(ctx, callCapacity, func(ctx context.Context) (err error) {
			capacity, err = r.Provider.Capacity(ctx, subnet)
			return err
		})
		switch {
		case err != nil && unknown == nil:
			unknown = fmt.Errorf("read the capacity of subnet %s: %w", subnet, err)
		case err == nil && capacity > 0:
			free = append(free, subnet)
		}
	}
	if len(free) > 0 {
		return free, nil
	}
	return nil, unknown
}

// candidateOrder returns the candidates in the order in which they are tried for an instance. The
// candidate that was requested before and may exist comes first. Instances that leave for new ones take
// no room. On-demand instances take no room either, and have no maximum, unless it is 0.
func (r *reconciliation) candidateOrder(a action, record *instance.Record) []*groups.Variant {
	choices := r.group.Choices()
	var order []int
	if record != nil && record.OnDemand {
		order = candidates.Next(choices, make([]int, len(choices)), nil)
	} else {
		others := r.othersOf(record)
		order = candidates.Next(choices, candidates.Count(choices, candidates.Assign(choices, others)), nil)
	}
	if a.below > 0 {
		order = slices.DeleteFunc(order, func(at int) bool { return at >= a.below })
	}
	var variants []*groups.Variant
	if own := r.requestedBefore(record); own != nil {
		variants = append(variants, own)
	}
	for _, at := range order {
		if v := &r.group.Variants[at]; !slices.ContainsFunc(variants, func(other *groups.Variant) bool { return other.InfraConfigHash == v.InfraConfigHash }) {
			variants = append(variants, v)
		}
	}
	return variants
}

// othersOf returns the managed instances that take room from an instance, which has a record or not.
func (r *reconciliation) othersOf(record *instance.Record) []candidates.Instance {
	others := stock.Staying(r.Instances.List(r.key))
	if record != nil {
		others = slices.DeleteFunc(others, func(i candidates.Instance) bool { return i.ID == record.ID })
	}
	surplus := len(others) + 1 - int(r.group.Size)
	if surplus <= 0 {
		return others
	}
	leaving := r.replaceable[:min(surplus, len(r.replaceable))]
	return slices.DeleteFunc(others, func(i candidates.Instance) bool { return slices.Contains(leaving, i.ID) })
}

// requestedBefore returns the candidate that was requested for an instance and may exist, nil if there
// is none. Of an instance that another leader has requested only the record is known.
func (r *reconciliation) requestedBefore(record *instance.Record) *groups.Variant {
	if record == nil {
		return nil
	}
	hash, requested := r.attempts.candidate(record.ID)
	if !requested && !record.OnDemand {
		hash = record.InfraConfigHash
	}
	return r.group.VariantOf(hash)
}
