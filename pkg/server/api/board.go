// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provision"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Groups tells what is wanted.
type Groups interface {
	Get(instance.GroupKey) (*groups.Group, bool)
}

// Instances tells what there is: the instances of a group that are not gone.
type Instances interface {
	List(instance.GroupKey) []instance.Instance
}

// Nodes tells what is certain of the Node of an instance before there is one.
type Nodes interface {
	ExpectedNode(instance.Spec) *corev1.Node
}

// Board shows the status of every group to whoever asks or watches: those that
// are wanted, and those that were deleted but have instances yet. Whoever changes
// a group or an instance calls Refresh; only a status that differs is shown anew.
type Board struct {
	groups    Groups
	instances Instances
	nodes     Nodes
	closed    chan struct{}

	mu sync.Mutex
	// statuses are never changed once they are here, only replaced.
	statuses map[instance.GroupKey]*nstancev1.GroupStatus
	watchers map[*watcher]struct{}
}

// NewBoard returns a board that is empty until groups are refreshed.
func NewBoard(groups Groups, instances Instances, nodes Nodes) *Board {
	return &Board{
		groups:    groups,
		instances: instances,
		nodes:     nodes,
		closed:    make(chan struct{}),
		statuses:  map[instance.GroupKey]*nstancev1.GroupStatus{},
		watchers:  map[*watcher]struct{}{},
	}
}

// Refresh brings the statuses of groups up to date, so that all of them show at
// once. It never waits for a watcher.
func (b *Board) Refresh(keys ...instance.GroupKey) {
	// Reading under the lock keeps an older status from replacing a newer one.
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		before, after := b.statuses[key], b.status(key)
		if proto.Equal(before, after) {
			continue
		}
		if after != nil {
			b.statuses[key] = after
		} else {
			delete(b.statuses, key)
		}
		b.tell(key)
	}
}

// status returns what to show of a group, which is nil when there is nothing. A
// group that was deleted shows until its last instance is gone. It is called
// with the lock held.
func (b *Board) status(key instance.GroupKey) *nstancev1.GroupStatus {
	instances := managed(b.instances.List(key))
	if group, found := b.groups.Get(key); found {
		return b.statusOf(group, instances)
	}
	if len(instances) == 0 {
		return nil
	}
	return newDeletingStatus(key, b.statuses[key], instances)
}

// statusOf returns what to show of a group that has these instances.
func (b *Board) statusOf(group *groups.Group, instances []instance.Instance) *nstancev1.GroupStatus {
	return newStatus(group, instances, b.nodes.ExpectedNode(provision.Common(group)))
}

// Close ends all watches, present and future.
func (b *Board) Close() {
	close(b.closed)
}

// tell is called with the lock held.
func (b *Board) tell(key instance.GroupKey) {
	for w := range b.watchers {
		if w.tenant == key.Tenant {
			w.add(key.Group)
		}
	}
}

// list returns the statuses of a tenant's groups in the order of their keys.
func (b *Board) list(tenant string) []*nstancev1.GroupStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []*nstancev1.GroupStatus
	for key, status := range b.statuses {
		if key.Tenant == tenant {
			list = append(list, status)
		}
	}
	slices.SortFunc(list, func(x, y *nstancev1.GroupStatus) int { return strings.Compare(x.Key, y.Key) })
	return list
}

// watch returns a watcher that begins with all groups of the tenant. The caller
// ends it with unwatch.
func (b *Board) watch(tenant string) *watcher {
	w := &watcher{board: b, tenant: tenant, waiting: map[string]struct{}{}, wake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(b.statuses), instance.GroupKey.Compare) {
		if key.Tenant == tenant {
			w.add(key.Group)
		}
	}
	b.watchers[w] = struct{}{}
	return w
}

func (b *Board) unwatch(w *watcher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.watchers, w)
}
