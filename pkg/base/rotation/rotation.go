// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package rotation divides the rotation of a pool among its shards: how many outdated instances
// each shard may replace now. It consists of pure functions, which the operator and the plugin of
// kubectl call.
//
// No decision needs a memory. Each follows from the instances that exist and from the grants that
// the shards have, so that another leader of the operator continues.
package rotation

import (
	"slices"
	"time"
)

// Policy is how the outdated instances of a pool are replaced.
type Policy struct {
	// MaxSurge is how many instances the shards may have above their sizes, together.
	MaxSurge int32
	// MaxUnavailable is by how many fewer instances than their sizes may work, together.
	MaxUnavailable int32
	// ShardByShard finishes a shard before the next one begins.
	ShardByShard bool
	// Canary is how many instances of the first shard are replaced before all others. Zero means
	// none.
	Canary int32
	// Bake is for how long instances must be ready after the canary, and before the next shard.
	Bake time.Duration
	// MinReady is for how long all instances that are up to date must be ready before the next step.
	MinReady time.Duration
	// AllReady makes steps wait for outdated instances that are not ready, too.
	AllReady bool
	// ProgressDeadline is how long after its creation an instance may take to be ready. Zero means
	// that readiness does not count.
	ProgressDeadline time.Duration
	// Windows are the times at which replacements may be started. None means always.
	Windows []Window
	// Paused stops the rotation.
	Paused bool
	// Blocked is the state of the pool for which the rotation waits, nil for none.
	Blocked *Stop
}

// steps reports whether replacements are granted in steps, each of which waits until the instances of
// the step before are ready. Otherwise one grant serves the whole rotation, and a configuration with
// which no instance becomes ready replaces all of them before the deadline of the first.
func (p *Policy) steps() bool {
	return p.ProgressDeadline > 0 || p.MinReady > 0 || p.Canary > 0 || p.AllReady
}

// Shard is a shard of a pool, as its server has reported it.
type Shard struct {
	ID string
	// Size is the wanted number of instances.
	Size int32
	// Connected reports whether the state is current, and the server knows grants. Unread reports that
	// the server was never read: what it does is not known.
	Connected, Unread bool
	// Grant is the grant that the operator has written last, nil without a grant. InForce is the
	// grant that the server has reported, which may still be an earlier one.
	Grant, InForce *Grant
	// Outdated is how many instances are outdated and not being deleted, UpToDate how many are up
	// to date or missing, Above how many exist above the size, with those that are being deleted, and
	// Below how many fewer work than the size.
	Outdated, UpToDate, Above, Below int32
	// Target is what the server compares instances with, as it names it: UpToDate is a number for
	// this target.
	Target string
	// Instances are the instances that are not being deleted, as the server has reported them last.
	Instances []Instance
}

// Instance is an instance of a shard.
type Instance struct {
	ID string
	// Problem is why it is not ready, as the end of a sentence about it.
	Problem string
	// Outdated is set if it is to be replaced.
	Outdated bool
	// Created is when it was created.
	Created time.Time
	// Ready is set if its Node is ready, and ReadySince is since when.
	Ready      bool
	ReadySince time.Time
}

// Grant is what a shard may do.
type Grant struct {
	// MaxSurge is how many instances the shard may have above its size.
	MaxSurge int32
	// MaxUnavailable is by how many fewer instances than its size may work.
	MaxUnavailable int32
	// UpToDate is the number of instances that are up to date from which on no replacement is
	// started.
	UpToDate int32
	// NotAfter is the time from which on no replacement is started; zero means no end.
	NotAfter time.Time
	// Target is the target for which UpToDate was decided. For another target the server starts no
	// replacement.
	Target string
}

// Reason is why a rotation does not go on.
type Reason string

// Reasons of a Stop.
const (
	Paused           Reason = "Paused"
	OutsideWindow    Reason = "OutsideWindow"
	Baking           Reason = "Baking"
	Failed           Reason = "RotationFailed"
	ShardUnreachable Reason = "ShardUnreachable"
	NotSynced        Reason = "NotSynced"
)

// Stop is why no replacement is started now.
type Stop struct {
	Reason  Reason
	Message string
}

// Decision is the rotation of a pool at a time.
type Decision struct {
	// Grants are by shard, in the order of the shards.
	Grants []Grant
	// Stop is why no replacement is started, nil if the grants allow some or nothing is outdated.
	Stop *Stop
	// Next is when the decision may change without another change, zero for never.
	Next time.Time
}

// Grants returns what each shard may replace now. The grants together never exceed the policy, as
// long as those that the shards have did not.
//
// What has begun is finished: a shard keeps as much of its grant as it is using, and a shard that
// is not connected keeps all, but starts nothing more than a connected shard would. What one shard loses,
// another gets when the server of the first has reported the loss.
func Grants(policy Policy, shards []Shard, now time.Time) Decision {
	d := &divider{Policy: policy, shards: shards, now: now}
	d.Grants = make([]Grant, len(shards))
	d.count()
	closes, open := openUntil(policy.Windows, now)
	if !open || !closes.IsZero() {
		d.at(closes)
	}
	stopped := d.stopped(closes, open)
	outdated := slices.ContainsFunc(shards, func(s Shard) bool { return s.Outdated > 0 })
	switch {
	case !outdated:
		d.hold()
	case stopped != nil:
		d.Stop = stopped
		d.hold()
		d.keepClosed(open)
	default:
		d.start(closes)
	}
	d.settle()
	d.step(closes)
	d.restrict(stopped != nil || d.Stop != nil, closes)
	if outdated && d.Stop == nil && !d.goesOn() {
		d.Stop = d.waiting()
	}
	return d.Decision
}

// divider divides the rotation of a pool.
type divider struct {
	Policy
	Decision
	shards []Shard
	now    time.Time
	// surge and unavailable are what is left of the policy.
	surge, unavailable int32
	// turn are the shards that start replacements, and limit is how many instances may be up to
	// date on each, 0 for all.
	turn  []int
	limit int32
}

// at notes when the decision may change.
func (d *divider) at(t time.Time) {
	if t.After(d.now) && (d.Next.IsZero() || t.Before(d.Next)) {
		d.Next = t
	}
}
