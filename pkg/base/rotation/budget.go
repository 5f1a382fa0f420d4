// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rotation

import (
	"slices"
	"strings"
	"time"
)

// written returns the grant that the operator has written last. Without a grant a server has one
// instance more than the size.
func (s *Shard) written() Grant {
	if s.Grant == nil {
		return Grant{MaxSurge: 1}
	}
	return *s.Grant
}

// reported returns the grant that the server has reported.
func (s *Shard) reported() Grant {
	if s.InForce == nil {
		return Grant{MaxSurge: 1}
	}
	return *s.InForce
}

// uses returns what the server may be using now, for whatever reason: the grant that it has
// reported, and what it has used of another grant or none. The state of a server that is not
// connected is not known, and so it may also have the grant that was written last.
func (s *Shard) uses() Grant {
	used := s.reported().or(Grant{MaxSurge: s.Above, MaxUnavailable: s.Below})
	if s.Connected {
		return used
	}
	return used.or(s.written())
}

// may returns what the server may start now: the grant that it has reported, or the next one.
func (s *Shard) may() Grant { return s.reported().or(s.written()) }

// or returns a grant with the larger of the numbers of two.
func (g Grant) or(other Grant) Grant {
	return Grant{MaxSurge: max(g.MaxSurge, other.MaxSurge), MaxUnavailable: max(g.MaxUnavailable, other.MaxUnavailable)}
}

// and returns a grant with the smaller of the numbers of two.
func (g Grant) and(other Grant) Grant {
	return Grant{MaxSurge: min(g.MaxSurge, other.MaxSurge), MaxUnavailable: min(g.MaxUnavailable, other.MaxUnavailable)}
}

// without returns what is left of a budget, which may be negative.
func (g Grant) without(other Grant) Grant {
	return Grant{MaxSurge: g.MaxSurge - other.MaxSurge, MaxUnavailable: g.MaxUnavailable - other.MaxUnavailable}
}

// ended reports whether the end of a grant has passed.
func (g *Grant) ended(now time.Time) bool { return !g.NotAfter.IsZero() && !g.NotAfter.After(now) }

// count takes from the policy what the shards use, for whatever reason. A shard that is not connected
// uses its whole grant.
func (d *divider) count() {
	d.surge, d.unavailable = d.MaxSurge, d.MaxUnavailable
	for i := range d.shards {
		shard := &d.shards[i]
		surge, unavailable := shard.Above, shard.Below
		if !shard.Connected {
			surge, unavailable = shard.uses().MaxSurge, shard.uses().MaxUnavailable
		}
		d.surge -= surge
		d.unavailable -= unavailable
	}
}

// hold lets each shard keep as much of its grant as it is using, so that it can finish what it has
// begun.
func (d *divider) hold() {
	for i := range d.shards {
		d.Grants[i] = d.shards[i].may().and(Grant{MaxSurge: d.shards[i].Above, MaxUnavailable: d.shards[i].Below})
	}
}

// keepClosed leaves the grants of a window that has closed as they are: they allow nothing more,
// and are not worth a write.
func (d *divider) keepClosed(open bool) {
	if open || d.Stop.Reason != OutsideWindow {
		return
	}
	for i := range d.shards {
		if held := d.shards[i].Grant; held != nil && held.ended(d.now) {
			d.Grants[i] = *held
		}
	}
}

// settle lets a shard have more only when all others that have to give it up have done so. A grant
// that is replaced before its server has it counts no more.
//
// Two sums are within the budget: what the shards use, and what they may start. They differ if a
// shard uses something without a grant, for the health of its instances or of a grant that it has
// lost meanwhile: it gets a grant for it when the others leave room.
func (d *divider) settle() {
	all := Grant{MaxSurge: d.MaxSurge, MaxUnavailable: d.MaxUnavailable}
	used, granted := all, all
	for i := range d.shards {
		shard := &d.shards[i]
		uses, may := shard.uses(), shard.may()
		switch {
		case shard.Unread:
			// It may have all of the budget.
			uses, may = all, all
		case shard.Connected:
			uses = uses.or(may.and(d.Grants[i]))
			may = shard.reported().or(may.and(d.Grants[i]))
		}
		used, granted = used.without(uses), granted.without(may)
	}
	more := func(wanted *int32, may, has int32, granted, used *int32) {
		*wanted = min(*wanted, may+max(0, *granted), has+max(0, *used))
		*granted -= max(0, *wanted-may)
		*used -= max(0, *wanted-has)
	}
	for i := range d.shards {
		if !d.shards[i].Connected {
			continue
		}
		may := d.shards[i].may()
		has := d.shards[i].uses().or(may)
		more(&d.Grants[i].MaxSurge, may.MaxSurge, has.MaxSurge, &granted.MaxSurge, &used.MaxSurge)
		more(&d.Grants[i].MaxUnavailable, may.MaxUnavailable, has.MaxUnavailable, &granted.MaxUnavailable, &used.MaxUnavailable)
	}
}

// restrict sets the grants of the shards that are not connected: what they have, as far as others may
// start replacements too. Their servers get it when the connection is back, together with a
// new configuration, and before their instances can be seen. A shard without a grant gets a grant of
// nothing: otherwise it would replace one instance at a time, whatever the policy says.
func (d *divider) restrict(stopped bool, closes time.Time) {
	for i := range d.shards {
		if d.shards[i].Connected {
			continue
		}
		d.Grants[i] = Grant{}
		if d.shards[i].Grant == nil {
			continue
		}
		grant := *d.shards[i].Grant
		switch {
		case grant.UpToDate == 0 || grant.ended(d.now):
			// It allows nothing more, and is not worth a write.
		case stopped:
			grant.UpToDate, grant.NotAfter, grant.Target = 0, time.Time{}, ""
		case !closes.IsZero() && (grant.NotAfter.IsZero() || closes.Before(grant.NotAfter)):
			grant.NotAfter = closes
		}
		d.Grants[i] = grant
	}
}

// fill gives one shard of turn after another one more, each time the first of those that have
// the fewest. In reverse order it begins with the last shard: if a pool has one of each kind, two
// shards go on.
func (d *divider) fill(turn []int, left int32, of func(*Grant) *int32, reverse bool) {
	order := slices.Clone(turn)
	if reverse {
		slices.Reverse(order)
	}
	for ; left > 0; left-- {
		next := -1
		for _, i := range order {
			room := d.shards[i].Outdated + max(d.shards[i].Above, d.shards[i].Below)
			if has := *of(&d.Grants[i]); has < room && (next < 0 || has < *of(&d.Grants[next])) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		*of(&d.Grants[next])++
	}
}

// goesOn reports whether a connected shard with outdated instances has a part of the budget.
func (d *divider) goesOn() bool {
	for i := range d.shards {
		if d.shards[i].Connected && d.shards[i].Outdated > 0 && d.Grants[i].MaxSurge+d.Grants[i].MaxUnavailable > 0 {
			return true
		}
	}
	return false
}

// waiting returns for which shards a rotation waits in which no shard has a part of the budget, nil if
// it waits only for instances that start or leave.
func (d *divider) waiting() *Stop {
	var unread, away []string
	for i := range d.shards {
		switch shard := &d.shards[i]; {
		case shard.Unread:
			unread = append(unread, shard.ID)
		case !shard.Connected && shard.uses() != Grant{}:
			away = append(away, shard.ID)
		}
	}
	switch {
	case len(unread) > 0:
		return &Stop{NotSynced, "it is not known what these shards replace: " + strings.Join(unread, ", ")}
	case len(away) > 0:
		return &Stop{ShardUnreachable, "these shards may use the budget, and are not connected: " + strings.Join(away, ", ")}
	}
	return nil
}
