// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

const (
	// lossWindow is the time in which no more than a share of a group, and of all groups
	// together, is given up because the provider does not list it.
	lossWindow = 15 * time.Minute
	// lossShare is that share, as a divisor, and minLosses the number of instances that may
	// be given up in any case.
	lossShare = 3
	minLosses = 2
	// acceptInterval is how often the reconciler checks whether an administrator has accepted
	// the losses.
	acceptInterval = 10 * time.Second
)

// AcceptedLosses has the confirmations of administrators.
type AcceptedLosses interface {
	// IsAccepted reports whether an administrator has confirmed since the last Reset that the
	// missing instances of a group are lost.
	IsAccepted(context.Context, instance.GroupKey) (bool, error)
	// Reset removes the confirmation of a group.
	Reset(context.Context, instance.GroupKey) error
}

// losses limit how many instances of a group, and of the shard, are given up at once: if many
// are missing at the same time, the provider or its configuration may be at fault
// (docs/server.md#missing-instances). A new leader starts without losses.
type losses struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]*groupLosses
}

// groupLosses are the losses of one group.
type groupLosses struct {
	// givenUp has the instances that were given up in the window.
	givenUp map[string]givenUp
	// keptSince is when the reconciler began to leave missing instances alone, or gave up a
	// share of them. It is zero if it leaves no instance alone.
	keptSince time.Time
	// waitingSince is when missing instances began to wait for others that the provider looks
	// for, zero if no instance waits.
	waitingSince time.Time
}

// givenUp is an instance that was given up.
type givenUp struct {
	at time.Time
	// accepted is true if an administrator has confirmed that it is lost: then the provider
	// is not at fault.
	accepted bool
}

// isLost reports whether an instance is missing and was not seen being terminated, or has stopped
// and was not started again. An instance without a provider id never ran: the provider has rejected
// it. A returned instance was given up before.
func isLost(i *instance.Instance) bool {
	if i.State == instance.Stopped {
		return i.MayReturn && !i.BeingDeleted() && !i.Returned
	}
	return i.State == instance.Missing && mayBeLost(i)
}

// mayBeLost reports whether an instance would be lost if it were missing.
func mayBeLost(i *instance.Instance) bool {
	return !i.BeingDeleted() && !i.Stopped && i.ProviderID != "" && !i.Returned
}

// update returns the missing instances of a group that are left alone, and how many are
// missing if no instance was left alone before. others returns the instances of the other groups.
func (l *losses) update(key instance.GroupKey, instances []instance.Instance, others func() map[instance.GroupKey][]instance.Instance, now time.Time, accepted bool) (kept map[string]bool, began string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	current := l.byGroup[key]
	if current == nil {
		current = &groupLosses{givenUp: map[string]givenUp{}}
	}
	count := current.count(instances, now)
	missing := count.missing
	switch {
	case len(missing) == 0:
	case accepted:
		missing = current.giveUp(missing, len(missing), givenUp{now, true})
	case current.keptSince.IsZero():
		shard := l.countShard(count, others(), now)
		if !count.isMany(count.unlisted) && !shard.isMany(shard.unlisted) {
			missing = current.giveUp(missing, len(missing), givenUp{at: now})
			break
		}
		if current.waitingSince.IsZero() {
			current.waitingSince = now
		}
		// Instances that the provider still looks for may be missing too.
		if count.isMany(0) || shard.isMany(0) || now.Sub(current.waitingSince) >= lossWindow {
			current.keptSince = now
			began = fmt.Sprintf("%d of %d instances of group %s, and %d of %d of the shard", len(missing), count.total, key, len(shard.missing), shard.total)
		}
	case now.Sub(current.keptSince) >= lossWindow:
		shard := l.countShard(count, others(), now)
		if share := min(count.allowed(), len(missing), shard.allowed()-shard.givenUp); share > 0 {
			missing = current.giveUp(missing, share, givenUp{at: now})
			current.keptSince = now
		}
	}
	if len(missing) == 0 {
		current.keptSince, current.waitingSince = time.Time{}, time.Time{}
	}
	if l.byGroup == nil {
		l.byGroup = map[instance.GroupKey]*groupLosses{}
	}
	l.byGroup[key] = current
	if len(current.givenUp) == 0 && current.keptSince.IsZero() && current.waitingSince.IsZero() {
		delete(l.byGroup, key)
	}
	kept = map[string]bool{}
	for _, id := range missing {
		kept[id] = true
	}
	return kept, began
}

// lossCount counts the instances of a group, or of all groups of the shard.
type lossCount struct {
	// missing are the instances that were not given up, and unlisted is how many others the
	// provider looks for.
	missing  []string
	unlisted int
	// givenUp is how many were given up in the window, without instances whose loss an
	// administrator has confirmed.
	givenUp int
	// total is the number of instances, including missing instances that were not given up.
	total int
}

// allowed returns how many instances may be given up in the window.
func (c lossCount) allowed() int { return max(minLosses, c.total/lossShare) }

// isMany reports whether more instances are missing than may be given up, if so many others
// are missing too.
func (c lossCount) isMany(others int) bool {
	return c.givenUp+len(c.missing)+others > c.allowed()
}

// count counts the instances of the group.
func (g *groupLosses) count(instances []instance.Instance, now time.Time) lossCount {
	var c lossCount
	for id, lost := range g.givenUp {
		switch {
		case now.Sub(lost.at) >= lossWindow:
			delete(g.givenUp, id)
		case !lost.accepted:
			c.givenUp++
		}
	}
	for n := range instances {
		i := &instances[n]
		if _, givenUp := g.givenUp[i.ID]; givenUp || i.BeingDeleted() || isUncreated(i) {
			continue
		}
		c.total++
		switch {
		case isLost(i):
			c.missing = append(c.missing, i.ID)
		case i.Unlisted && mayBeLost(i):
			c.unlisted++
		}
	}
	return c
}

// countShard adds the instances of all other groups to the count of one group. mu must be
// locked.
func (l *losses) countShard(c lossCount, others map[instance.GroupKey][]instance.Instance, now time.Time) lossCount {
	for key, instances := range others {
		group := l.byGroup[key]
		if group == nil {
			group = new(groupLosses)
		}
		other := group.count(instances, now)
		c.missing = append(slices.Clip(c.missing), other.missing...)
		c.unlisted += other.unlisted
		c.givenUp += other.givenUp
		c.total += other.total
	}
	return c
}

// giveUp gives up the first of the missing instances, and returns the others.
func (g *groupLosses) giveUp(missing []string, count int, as givenUp) []string {
	for _, id := range missing[:count] {
		g.givenUp[id] = as
	}
	return missing[count:]
}

// keeps reports whether instances of a group are left alone.
func (l *losses) keeps(key instance.GroupKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	current := l.byGroup[key]
	return current != nil && !current.keptSince.IsZero()
}

// keepLost returns the missing instances that are left alone, and reports them once.
func (r *reconciliation) keepLost(ctx context.Context, observed *state, now time.Time) (kept map[string]bool) {
	if observed.deleted {
		return nil
	}
	logger := klog.FromContext(ctx)
	accepted := false
	if r.Losses != nil && r.losses.keeps(r.key) {
		var err error
		err = r.withCallContext(ctx, func(ctx context.Context) error {
			accepted, err = r.Losses.IsAccepted(ctx, r.key)
			return err
		})
		if err != nil {
			logger.Error(err, "Failed to read whether losses were accepted, will retry")
		}
	}
	instances := slices.Clone(observed.instances)
	for n := range instances {
		// What may still be started again is not lost yet.
		instances[n].MayReturn = instances[n].MayReturn && !observed.restarting[instances[n].ID]
	}
	kept, began := r.losses.update(r.key, instances, r.others, now, accepted)
	if r.Losses != nil && (accepted || began != "") {
		// A confirmation concerns only the instances that are missing now.
		if err := r.withCallContext(ctx, func(ctx context.Context) error { return r.Losses.Reset(ctx, r.key) }); err != nil {
			logger.Error(err, "Failed to remove the confirmation of losses")
		}
	}
	if began != "" {
		err := fmt.Errorf("the provider does not list, or reports as stopped, %s: they are left alone for %s, and then replaced in parts, "+
			"unless they come back or an administrator runs nstance-admin shard accept-losses", began, lossWindow)
		logger.Error(err, "Too many instances are missing or have stopped")
		r.Failed(r.key, "", err)
	}
	if len(kept) > 0 {
		r.outcome.within(acceptInterval)
	}
	return kept
}

// others returns the instances of the other groups that were not deleted.
func (r *reconciliation) others() map[instance.GroupKey][]instance.Instance {
	all := map[instance.GroupKey][]instance.Instance{}
	for _, key := range r.Instances.Keys() {
		if key != r.key && !r.Groups.Deleted(key) {
			all[key] = r.Instances.List(key)
		}
	}
	return all
}

// confirmations decide how long the managed instances of a group are left alone because some
// of them were missing when this server began to lead: an operator may send another size
// (docs/server-reference.md#lost-objects).
type confirmations struct {
	mu sync.Mutex
	// first has the groups that existed when this server began to lead.
	first map[instance.GroupKey]*firstState
}

// firstState is the state of a group when this server began to lead.
type firstState struct {
	// etag is the etag of the group at that time. An operator that has sent another size has
	// changed it.
	etag string
	// missing is when an instance was first confirmed to be missing from the beginning. Some
	// providers take a while to confirm it.
	missing time.Time
}

// start adds a group.
func (c *confirmations) start(group *groups.Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == nil {
		c.first = map[instance.GroupKey]*firstState{}
	}
	c.first[group.Key] = &firstState{etag: group.ETag}
}

// waitFor returns how long the managed instances of a group are left alone.
func (c *confirmations) waitFor(group *groups.Group, instances []instance.Instance, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, existed := c.first[group.Key]
	if !existed || first.etag != group.ETag {
		return 0
	}
	if first.missing.IsZero() {
		if !slices.ContainsFunc(instances, isMissingFromBeginning) {
			return 0
		}
		first.missing = now
	}
	return max(0, confirmTimeout-now.Sub(first.missing))
}

// isMissingFromBeginning reports whether a managed instance has been missing since this
// server began to lead.
func isMissingFromBeginning(i instance.Instance) bool {
	return !i.OnDemand && i.State == instance.Missing && !i.Found && !i.BeingDeleted()
}

// restarts remember since when instances have stopped that may be started again by the restart of
// their host (docs/server.md#reconciliation). A new leader begins again.
type restarts struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]map[string]time.Time
}

// update returns the instances of a group that may still be started again, and when the next of
// them is over.
func (r *restarts) update(key instance.GroupKey, instances []instance.Instance, grace time.Duration, now time.Time) (restarting map[string]bool, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, since := r.byGroup[key], map[string]time.Time{}
	restarting = map[string]bool{}
	for n := range instances {
		i := &instances[n]
		if i.State != instance.Stopped || !i.MayReturn || i.BeingDeleted() {
			continue
		}
		began, known := before[i.ID]
		if !known {
			began = now
		}
		since[i.ID] = began
		if left := began.Add(grace).Sub(now); left > 0 {
			restarting[i.ID] = true
			if next == 0 || left < next {
				next = left
			}
		}
	}
	if r.byGroup == nil {
		r.byGroup = map[instance.GroupKey]map[string]time.Time{}
	}
	if r.byGroup[key] = since; len(since) == 0 {
		delete(r.byGroup, key)
	}
	return restarting, next
}
