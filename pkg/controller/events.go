// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
)

const (
	// maxNote is the maximum length of an event's note, in bytes. The API server rejects an
	// event with a longer note
	// (https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/validation/events.go).
	maxNote = 1024
	// eventPeriod is the time in which an object gets no second event with the same reason.
	// client-go's recorder forgets an event after 12 minutes at most
	// (https://github.com/kubernetes/client-go/blob/master/tools/events/event_broadcaster.go).
	// Until then it patches the event if it is recorded again, and the operator has no
	// permission to patch events.
	eventPeriod = 15 * time.Minute
	// sweepPeriod is how often expired entries are dropped. A search at each event would make a
	// burst of events, such as at an outage of all shards, take a time that grows with its square.
	sweepPeriod = time.Minute
	// maxNormal is how many events of type Normal an object gets with one reason and one
	// related object in that time. The recorder treats them as different events, because the
	// resource version of the object is part of them.
	maxNormal = 10
	// maxParts is of how many parts an object gets warnings with one reason in that time. The
	// parts are named by servers, and must not fill the memory.
	maxParts = 20
)

// NewRecorder returns a recorder for events about built-in kinds and the kinds of addToScheme,
// limited by LimitEvents. manager is the reporting controller of the events.
func NewRecorder(ctx context.Context, client kubernetes.Interface, manager string, addToScheme func(*runtime.Scheme) error) (events.EventRecorder, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register built-in kinds: %w", err)
	}
	if err := addToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register our kinds: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("start recording events: %w", err)
	}
	return LimitEvents(broadcaster.NewRecorder(scheme, manager), clock.RealClock{}), nil
}

// Warn records an event of type Warning about object. A note that is too long is cut off.
func Warn(recorder events.EventRecorder, object runtime.Object, reason, action, note string) {
	recorder.Eventf(object, nil, corev1.EventTypeWarning, reason, action, "%s", Truncate(note, maxNote))
}

// WarnAbout is Warn for a part of object, such as a shard or an instance, which does not hide
// events about other parts.
func WarnAbout(recorder events.EventRecorder, object runtime.Object, part, reason, action, note string) {
	if limited, ok := recorder.(*limitedRecorder); ok {
		limited.record(part, object, nil, corev1.EventTypeWarning, reason, action, "%s", Truncate(note, maxNote))
		return
	}
	Warn(recorder, object, reason, action, note)
}

// Record records an event of type Normal about object, such as a change of its size. A note
// that is too long is cut off.
func Record(recorder events.EventRecorder, object runtime.Object, reason, action, note string) {
	recorder.Eventf(object, nil, corev1.EventTypeNormal, reason, action, "%s", Truncate(note, maxNote))
}

// LimitEvents returns a recorder that drops events which exceed these limits in a quarter of
// an hour.
//
// Type Warning: one event per object, part of it and reason, of at most maxParts parts.
// Conditions show the present state; an event only shows that a problem began. Type Normal: one event per version of an object, reason and
// related object, and at most maxNormal per object, reason and related object, because each
// has its own content.
func LimitEvents(recorder events.EventRecorder, clock clock.PassiveClock) events.EventRecorder {
	return &limitedRecorder{EventRecorder: recorder, clock: clock, last: map[subject][]occurrence{}, parts: map[subject]int{}}
}

// subject identifies equal events. Warnings are equal whatever they are related to; events of
// type Normal about different related objects are different.
type subject struct {
	uid                              types.UID
	eventtype, reason, related, part string
}

// whole returns the subject without its part.
func (s subject) whole() subject {
	s.part = ""
	return s
}

// occurrence is an event that was recorded about a subject.
type occurrence struct {
	resourceVersion string
	at              time.Time
}

func (o occurrence) expired(now time.Time) bool { return now.Sub(o.at) >= eventPeriod }

type limitedRecorder struct {
	events.EventRecorder
	clock clock.PassiveClock

	mu   sync.Mutex
	last map[subject][]occurrence
	// parts is the number of parts in last, by the subject without its part.
	parts map[subject]int
	// swept is when expired entries were dropped.
	swept time.Time
}

// Eventf implements events.EventRecorder.
func (r *limitedRecorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	r.record("", regarding, related, eventtype, reason, action, note, args...)
}

func (r *limitedRecorder) record(part string, regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	object, err := meta.Accessor(regarding)
	if err == nil {
		about := subject{uid: object.GetUID(), eventtype: eventtype, reason: reason, part: part}
		if other, err := meta.Accessor(related); err == nil && eventtype == corev1.EventTypeNormal {
			about.related = other.GetName()
		}
		if !r.allow(about, object.GetResourceVersion()) {
			return
		}
	}
	r.EventRecorder.Eventf(regarding, related, eventtype, reason, action, note, args...)
}

func (r *limitedRecorder) allow(about subject, resourceVersion string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if now.Sub(r.swept) >= sweepPeriod {
		r.sweep(now)
	}
	last, known := r.last[about]
	if about.part != "" && !known {
		if r.parts[about.whole()] >= maxParts {
			about.part = ""
			last = r.last[about]
		} else {
			r.parts[about.whole()]++
		}
	}
	last = slices.DeleteFunc(last, func(o occurrence) bool { return o.expired(now) })
	switch {
	case about.eventtype != corev1.EventTypeNormal && len(last) > 0, len(last) >= maxNormal,
		slices.ContainsFunc(last, func(o occurrence) bool { return o.resourceVersion == resourceVersion }):
		r.last[about] = last
		return false
	}
	r.last[about] = append(last, occurrence{resourceVersion, now})
	return true
}

// sweep drops expired entries, so that their number is bounded by the events of eventPeriod and
// sweepPeriod. The caller holds mu.
func (r *limitedRecorder) sweep(now time.Time) {
	r.swept = now
	maps.DeleteFunc(r.last, func(about subject, last []occurrence) bool {
		dropped := last[len(last)-1].expired(now)
		if dropped && about.part != "" {
			if r.parts[about.whole()]--; r.parts[about.whole()] == 0 {
				delete(r.parts, about.whole())
			}
		}
		return dropped
	})
}
