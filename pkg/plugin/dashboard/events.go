// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"nstance.dev/operator/pkg/plugin/drains"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/printing"
)

// maxEvents is the number of events that the page shows.
const maxEvents = 25

// eventView is an event.
type eventView struct {
	Key     string
	At      time.Time
	Age     string
	Warning bool
	Kind    string
	Object  string
	Reason  string
	Note    string
}

// addEvents adds the last events, the latest first.
func (v *view) addEvents(s *objects.Snapshot, options printing.Options) {
	for _, unknown := range []string{s.RecentEvents.Unknown, s.RecentNodeEvents.Unknown} {
		if unknown != "" && !slices.Contains(v.EventsUnknown, unknown) {
			v.EventsUnknown = append(v.EventsUnknown, unknown)
		}
	}
	all := slices.Concat(s.RecentEvents.Items, s.RecentNodeEvents.Items)
	slices.SortStableFunc(all, func(a, b eventsv1.Event) int { return drains.LastSeen(&b).Compare(drains.LastSeen(&a)) })
	if len(all) > maxEvents {
		v.EventsOmitted, all = len(all)-maxEvents, all[:maxEvents]
	}
	for i := range all {
		event := &all[i]
		at := drains.LastSeen(event)
		v.Events = append(v.Events, eventView{
			Key: string(event.UID), At: at, Age: options.Age(at), Warning: event.Type == corev1.EventTypeWarning,
			Kind: event.Regarding.Kind, Object: event.Regarding.Name, Reason: event.Reason, Note: event.Note,
		})
	}
}
