// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
)

const (
	// maxNote is the longest note of an event, in bytes. The API server refuses
	// an event with a longer one.
	maxNote = 1024
	// eventPeriod is the time in which an object gets no second event of the same
	// reason. A recorder forgets an event after 12 minutes at most; until then it
	// patches it if it is recorded again, and the operator has no right to do that.
	eventPeriod = 15 * time.Minute
)

// Warn records an event of type Warning about object. A note that is too long
// for an event is cut off.
func Warn(recorder events.EventRecorder, object runtime.Object, reason, action, note string) {
	recorder.Eventf(object, nil, corev1.EventTypeWarning, reason, action, "%s", truncate(note, maxNote))
}

// LimitEvents returns a recorder that hands at most one event per object and
// reason on to recorder in a quarter of an hour, and drops the others: conditions show the
// present state, an event only shows that a problem began.
func LimitEvents(recorder events.EventRecorder, clock clock.PassiveClock) events.EventRecorder {
	return &limitedRecorder{EventRecorder: recorder, clock: clock, last: map[subject]time.Time{}}
}

// subject is what an event is about and why.
type subject struct {
	uid    types.UID
	reason string
}

type limitedRecorder struct {
	events.EventRecorder
	clock clock.PassiveClock

	mu   sync.Mutex
	last map[subject]time.Time
}

// Eventf implements events.EventRecorder.
func (r *limitedRecorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	object, err := meta.Accessor(regarding)
	if err == nil && !r.allow(subject{object.GetUID(), reason}) {
		return
	}
	r.EventRecorder.Eventf(regarding, related, eventtype, reason, action, note, args...)
}

func (r *limitedRecorder) allow(about subject) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if last, ok := r.last[about]; ok && now.Sub(last) < eventPeriod {
		return false
	}
	// Expired entries are dropped here, so that the size is bounded by the events of
	// one period.
	maps.DeleteFunc(r.last, func(_ subject, last time.Time) bool { return now.Sub(last) >= eventPeriod })
	r.last[about] = now
	return true
}
