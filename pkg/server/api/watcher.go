// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"context"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// watcher is what one stream has not been told yet. It holds the groups that
// changed, not the changes: however slow the stream, it takes at most one entry
// a group, and what is sent is the state at that time. A group that is gone by
// then is sent as deleted, so no deletion is lost.
type watcher struct {
	board  *Board
	tenant string
	// wake has an entry when there may be something to send.
	wake chan struct{}

	// order and waiting hold the same groups. The lock of the board guards them.
	order   []string
	waiting map[string]struct{}
}

// add is called with the lock of the board held.
func (w *watcher) add(group string) {
	if _, already := w.waiting[group]; already {
		return
	}
	w.waiting[group] = struct{}{}
	w.order = append(w.order, group)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next waits for an event. It returns a gRPC status when ctx or the board ends.
func (w *watcher) next(ctx context.Context) (*nstancev1.GroupEvent, error) {
	return await(ctx, w.board.closed, w.wake, w.take)
}

// take returns nil when there is nothing to send.
func (w *watcher) take() *nstancev1.GroupEvent {
	w.board.mu.Lock()
	defer w.board.mu.Unlock()
	if len(w.order) == 0 {
		return nil
	}
	group := w.order[0]
	w.order = w.order[1:]
	delete(w.waiting, group)
	if current, shown := w.board.statuses[instance.GroupKey{Tenant: w.tenant, Group: group}]; shown {
		return &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: current}
	}
	return &nstancev1.GroupEvent{
		Type:  nstancev1.GroupEvent_TYPE_DELETE,
		Group: &nstancev1.GroupStatus{Key: group, Tenant: w.tenant},
	}
}
