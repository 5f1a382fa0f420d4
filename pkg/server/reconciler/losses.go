// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
)

const (
	// lossWindow is the time in which no more than a share of a group is given up because
	// the provider does not list it.
	lossWindow = 15 * time.Minute
	// lossShare is that share, as a divisor, and minLosses how many instances may be given up
	// in any case.
	lossShare = 3
	minLosses = 2
	// acceptInterval is how often to look whether an administrator has accepted the losses.
	acceptInterval = 10 * time.Second
)

// AcceptedLosses is what administrators have confirmed.
type AcceptedLosses interface {
	// IsAccepted reports whether an administrator has confirmed since the last Reset that the
	// missing instances of a group are lost.
	IsAccepted(context.Context, instance.GroupKey) (bool, error)
	// Reset removes the confirmation of a group.
	Reset(context.Context, instance.GroupKey) error
}

// losses limit how many instances of a group are given up at once: many that are missing
// at the same time may be a mistake of the provider, or of its configuration
// (docs/server.md#missing-instances). A new leader starts without losses.
type losses struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]*groupLosses
}

// groupLosses are those of one group.
type groupLosses struct {
	// givenUp is when each instance was given up, as far as it is in the window.
	givenUp map[string]time.Time
	// keptSince is when the missing instances began to be left alone, or a share of them was
	// given up. It is zero if no instance is left alone.
	keptSince time.Time
}

// isLost reports whether an instance is missing and was not seen being terminated. One without
// a provider id never ran: the provider has rejected it. One that has returned was given up
// before.
func isLost(i *instance.Instance) bool {
	return i.State == instance.Missing && !i.BeingDeleted() && !i.Stopped && i.ProviderID != "" && !i.Returned
}

// update returns the missing instances of a group that are left alone. began is true if
// there were none before.
func (l *losses) update(key instance.GroupKey, instances []instance.Instance, now time.Time, accepted bool) (kept map[string]bool, began bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	current := l.byGroup[key]
	if current == nil {
		current = &groupLosses{givenUp: map[string]time.Time{}}
	}
	for id, at := range current.givenUp {
		if now.Sub(at) >= lossWindow {
			delete(current.givenUp, id)
		}
	}
	missing, total := current.count(instances)
	switch allowed := max(minLosses, total/lossShare); {
	case len(missing) == 0:
	case accepted, current.keptSince.IsZero() && len(current.givenUp)+len(missing) <= allowed:
		current.giveUp(missing, now)
		missing = nil
	case current.keptSince.IsZero():
		current.keptSince, began = now, true
	case now.Sub(current.keptSince) >= lossWindow:
		share := min(allowed, len(missing))
		current.giveUp(missing[:share], now)
		missing, current.keptSince = missing[share:], now
	}
	if len(missing) == 0 {
		current.keptSince = time.Time{}
	}
	if l.byGroup == nil {
		l.byGroup = map[instance.GroupKey]*groupLosses{}
	}
	l.byGroup[key] = current
	if len(current.givenUp) == 0 && current.keptSince.IsZero() {
		delete(l.byGroup, key)
	}
	kept = map[string]bool{}
	for _, id := range missing {
		kept[id] = true
	}
	return kept, began
}

// count returns the missing instances that were not given up, and how many instances the
// group has, with the missing ones.
func (g *groupLosses) count(instances []instance.Instance) (missing []string, total int) {
	for n := range instances {
		i := &instances[n]
		if _, givenUp := g.givenUp[i.ID]; givenUp || i.BeingDeleted() || isUncreated(i) {
			continue
		}
		total++
		if isLost(i) {
			missing = append(missing, i.ID)
		}
	}
	return missing, total
}

func (g *groupLosses) giveUp(ids []string, now time.Time) {
	for _, id := range ids {
		g.givenUp[id] = now
	}
}

// keeps reports whether instances of a group are left alone.
func (l *losses) keeps(key instance.GroupKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	current := l.byGroup[key]
	return current != nil && !current.keptSince.IsZero()
}

// keepLost returns the missing instances that are left alone, and reports them when they
// begin to be.
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
	kept, began := r.losses.update(r.key, observed.instances, now, accepted)
	if r.Losses != nil && (accepted || began) {
		// A confirmation is of the instances that are missing now.
		if err := r.withCallContext(ctx, func(ctx context.Context) error { return r.Losses.Reset(ctx, r.key) }); err != nil {
			logger.Error(err, "Failed to remove the confirmation of losses")
		}
	}
	if began {
		err := fmt.Errorf("the provider does not list %d of %d instances of group %s: they are left alone for %s, and then replaced in parts, "+
			"unless they come back or an administrator runs nstance-admin shard accept-losses",
			len(kept), len(observed.instances), r.key, lossWindow)
		logger.Error(err, "Too many instances are missing")
		r.Failed(r.key, "", err)
	}
	if len(kept) > 0 {
		r.outcome.within(acceptInterval)
	}
	return kept
}
