// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// repeatErrorAfter is how long a watcher does not get the same error of a
	// group again.
	repeatErrorAfter = 30 * time.Second
	// maxPendingErrors is the maximum number of events that are pending for one
	// watcher.
	maxPendingErrors = 100
)

// errorWatcher queues errors for one stream. Every event is its own key, so no event replaces
// another. A slow stream loses the oldest events.
type errorWatcher = watcher[*nstancev1.ErrorEvent, nstancev1.ErrorEvent]

// Errors sends errors to watchers when they happen. Nothing is kept for watchers
// that come later (docs/protocol.md#errors).
type Errors struct {
	watchers *watchers[*nstancev1.ErrorEvent, nstancev1.ErrorEvent]
}

// NewErrors returns Errors without watchers.
func NewErrors() *Errors {
	return &Errors{watchers: newWatchers[*nstancev1.ErrorEvent, nstancev1.ErrorEvent]()}
}

// ReportInstance sends the watchers of the group's tenant an error of creating or deleting an
// instance. The id is empty if there is no such instance. It never waits for a watcher.
func (e *Errors) ReportInstance(group instance.GroupKey, id string, err error) {
	text := err.Error()
	if id != "" {
		// The event has the instance's id in a field. With the id replaced in the
		// text, the same error of many instances is reported once.
		text = strings.ReplaceAll(text, id, "<instance>")
	}
	event := &nstancev1.ErrorEvent{Group: group.Group, InstanceId: id, Error: validText(text), Timestamp: timestamppb.Now()}
	e.watchers.publish(group.Tenant, event, event)
}

// validText returns a text of a provider or a machine as a message may have it. A stream ends
// with an error if a field of type string is not UTF-8
// (https://protobuf.dev/programming-guides/proto3/#scalar).
func validText(text string) string { return strings.ToValidUTF8(text, string(utf8.RuneError)) }

// ReportShard sends all watchers an error that concerns the whole shard, without the mistakes
// of other tenants. It never waits for a watcher.
func (e *Errors) ReportShard(err error) {
	now := timestamppb.Now()
	e.watchers.publishToAll(func(tenant string) (*nstancev1.ErrorEvent, *nstancev1.ErrorEvent) {
		event := &nstancev1.ErrorEvent{Error: validText(config.For(tenant, err).Error()), Timestamp: now}
		return event, event
	})
}

// Close closes all watches, present and future.
func (e *Errors) Close() {
	e.watchers.close()
}

// watch returns a watcher for the errors from now on. The caller removes it with
// e.watchers.unwatch.
func (e *Errors) watch(tenant string) *errorWatcher {
	return e.watchers.watch(&errorWatcher{tenant: tenant, limit: maxPendingErrors, skip: recentErrors{}.repeats})
}

// recentErrors has the time when a watcher got each error last.
type recentErrors map[recentError]time.Time

type recentError struct {
	group, text string
}

// repeats reports whether the watcher got the same error a short time ago. If
// not, it records event.
func (r recentErrors) repeats(event *nstancev1.ErrorEvent) bool {
	now := time.Now()
	maps.DeleteFunc(r, func(_ recentError, at time.Time) bool { return now.Sub(at) >= repeatErrorAfter })
	key := recentError{group: event.Group, text: event.Error}
	if _, found := r[key]; found {
		return true
	}
	r[key] = now
	return false
}
