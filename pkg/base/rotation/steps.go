// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rotation

import (
	"fmt"
	"strings"
	"time"
)

// stopped returns why no replacement is started on any shard, nil if some may be.
func (d *divider) stopped(closes time.Time, open bool) *Stop {
	switch {
	case d.Paused:
		return &Stop{Paused, "spec.rotation.paused is set"}
	case !open:
		return &Stop{OutsideWindow, fmt.Sprintf("the next window opens at %s", closes.UTC().Format(time.RFC3339))}
	case d.Blocked != nil:
		return d.Blocked
	}
	return d.failed()
}

// failed returns which instance of the present configuration is not ready in time.
func (d *divider) failed() *Stop {
	if d.ProgressDeadline == 0 {
		return nil
	}
	var failed []string
	for i := range d.shards {
		for _, instance := range d.shards[i].Instances {
			if instance.Outdated || instance.Ready || !d.shards[i].Connected {
				continue
			}
			due := instance.Created.Add(d.ProgressDeadline)
			if d.at(due); d.now.Before(due) {
				continue
			}
			failed = append(failed, fmt.Sprintf("instance %s on shard %s was created at %s and %s",
				instance.ID, d.shards[i].ID, instance.Created.UTC().Format(time.RFC3339), instance.Problem))
		}
	}
	switch len(failed) {
	case 0:
		return nil
	case 1:
		return &Stop{Failed, failed[0]}
	}
	return &Stop{Failed, fmt.Sprintf("%s; and %d more", failed[0], len(failed)-1)}
}

// start divides what is left of the policy among the shards whose turn it is, one by one.
func (d *divider) start(closes time.Time) {
	turn, limit, stop := d.next()
	d.hold()
	if stop != nil {
		d.Stop = stop
		return
	}
	if d.steps() && !d.ready() {
		// The step that was granted goes on, and the shards that have a part in it keep it.
		for i := range d.shards {
			shard := &d.shards[i]
			if held := shard.Grant; held != nil && shard.Connected && shard.Outdated > 0 && held.UpToDate > 0 && held.Target == shard.Target {
				d.keep(i, held, closes)
			}
		}
		return
	}
	// What these shards use, also for other reasons, counts in their grants.
	surge, unavailable := d.surge, d.unavailable
	for _, i := range turn {
		surge += d.shards[i].Above
		unavailable += d.shards[i].Below
	}
	for _, i := range turn {
		grant := &d.Grants[i]
		grant.MaxSurge = max(0, min(d.shards[i].Above, surge))
		grant.MaxUnavailable = max(0, min(d.shards[i].Below, unavailable))
		surge -= grant.MaxSurge
		unavailable -= grant.MaxUnavailable
	}
	d.fill(turn, d.surge, func(g *Grant) *int32 { return &g.MaxSurge }, false)
	d.fill(turn, d.unavailable, func(g *Grant) *int32 { return &g.MaxUnavailable }, true)
	d.turn, d.limit = turn, limit
}

// step lets the shards whose turn it is start replacements.
func (d *divider) step(closes time.Time) {
	for _, i := range d.turn {
		shard, grant := &d.shards[i], &d.Grants[i]
		if grant.MaxSurge+grant.MaxUnavailable == 0 {
			// A shard without a part waits. It must not go on without one.
			continue
		}
		grant.NotAfter, grant.UpToDate, grant.Target = closes, shard.Size, shard.Target
		if d.steps() {
			grant.UpToDate = min(shard.stepTo(grant), shard.Size)
		}
		if d.limit > 0 {
			grant.UpToDate = min(grant.UpToDate, d.limit)
		}
	}
}

// keep leaves the part of a shard in the present step as it is, as far as the policy has room.
func (d *divider) keep(i int, held *Grant, closes time.Time) {
	grant := &d.Grants[i]
	more := max(0, min(held.MaxSurge-grant.MaxSurge, d.surge))
	grant.MaxSurge += more
	d.surge -= more
	more = max(0, min(held.MaxUnavailable-grant.MaxUnavailable, d.unavailable))
	grant.MaxUnavailable += more
	d.unavailable -= more
	if grant.MaxSurge+grant.MaxUnavailable == 0 {
		return
	}
	// A grant of another policy may have been for more than a step.
	grant.UpToDate, grant.NotAfter, grant.Target = min(held.UpToDate, d.shards[i].stepTo(grant), d.shards[i].Size), closes, held.Target
}

// stepTo returns how many instances are up to date after one more step with a grant. Instances that
// are missing are a part of it: they are new, and it is not known yet whether they will be ready.
func (s *Shard) stepTo(grant *Grant) int32 {
	var exist int32
	for i := range s.Instances {
		if !s.Instances[i].Outdated {
			exist++
		}
	}
	return min(s.UpToDate, exist) + grant.MaxSurge + grant.MaxUnavailable
}

// next returns the shards that may start replacements, and how many instances may be up to date on
// each, 0 for all. It returns why none may, if the canary or a shard has not proved itself.
func (d *divider) next() (turn []int, limit int32, stop *Stop) {
	var outdated []int
	first := -1
	for i := range d.shards {
		if d.shards[i].Size > 0 && first < 0 {
			first = i
		}
		if d.shards[i].Connected && d.shards[i].Outdated > 0 {
			outdated = append(outdated, i)
		}
	}
	if d.Canary > 0 && first >= 0 {
		shard := &d.shards[first]
		wanted := min(d.Canary, shard.Size)
		switch {
		case !shard.Connected:
			return nil, 0, &Stop{Baking, fmt.Sprintf("shard %s, which has the canary, is not connected", shard.ID)}
		case shard.UpToDate < wanted && shard.Outdated > 0:
			return []int{first}, wanted, nil
		case !d.baked(shard, wanted):
			return nil, 0, &Stop{Baking, fmt.Sprintf("%d instances of shard %s are to be ready for %s before others are replaced", wanted, shard.ID, d.Bake)}
		}
	}
	if !d.ShardByShard || len(outdated) == 0 {
		return outdated, 0, nil
	}
	var unproved, away []string
	for i := range d.shards[:outdated[0]] {
		switch shard := &d.shards[i]; {
		case !shard.Connected && shard.Size > 0:
			away = append(away, shard.ID)
		case shard.Connected && (shard.Above+shard.Below > 0 || !d.baked(shard, int32(len(shard.Instances)))):
			unproved = append(unproved, shard.ID)
		}
	}
	if len(away) > 0 {
		return nil, 0, &Stop{ShardUnreachable, fmt.Sprintf("it is not known whether these shards, which come before shard %s, have finished: %s",
			d.shards[outdated[0]].ID, strings.Join(away, ", "))}
	}
	if len(unproved) > 0 {
		return nil, 0, &Stop{Baking, fmt.Sprintf("the instances of these shards are to be ready for %s before shard %s begins: %s",
			d.Bake, d.shards[outdated[0]].ID, strings.Join(unproved, ", "))}
	}
	return outdated[:1], 0, nil
}

// baked reports whether so many instances of a shard that are up to date have been ready for long
// enough.
func (d *divider) baked(shard *Shard, wanted int32) bool {
	var baked int32
	for _, instance := range shard.Instances {
		if !instance.Outdated && d.readyFor(&instance, d.Bake) {
			baked++
		}
	}
	return baked >= wanted
}

// ready reports whether the instances for which a step waits are ready, also those of a shard that is
// not connected: their Nodes are seen all the same.
func (d *divider) ready() bool {
	ready := true
	for i := range d.shards {
		ready = ready && !d.shards[i].Unread
		for _, instance := range d.shards[i].Instances {
			if !instance.Outdated || d.AllReady {
				least := d.MinReady
				if instance.Outdated {
					least = 0
				}
				ready = d.readyFor(&instance, least) && ready
			}
		}
	}
	return ready
}

func (d *divider) readyFor(instance *Instance, least time.Duration) bool {
	if !instance.Ready {
		return false
	}
	d.at(instance.ReadySince.Add(least))
	return !d.now.Before(instance.ReadySince.Add(least))
}
