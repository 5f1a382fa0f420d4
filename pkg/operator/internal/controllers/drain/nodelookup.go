// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
)

// nodeLookup finds out by a live list of all Nodes whether there is a Node with a
// provider id. One list serves all requests that were made before it started.
type nodeLookup struct {
	client kubernetes.Interface
	clock  clock.PassiveClock
	// enqueue enqueues a drain after a delay.
	enqueue func(Key, time.Duration)
	queue   *controller.Queue[string]

	mu sync.Mutex
	// requested are the provider ids to look up, and requestedAt the times of the first
	// requests.
	requested   map[Key]string
	requestedAt map[Key]time.Time
	// notFoundAt is the time of the list that did not contain the Node.
	notFoundAt map[Key]time.Time
	// err is the error of the last list, nil for none.
	err error
}

// allNodes is the only key of the queue.
const allNodes = "nodes"

func newNodeLookup(client kubernetes.Interface, clock clock.PassiveClock, enqueue func(Key, time.Duration)) *nodeLookup {
	l := &nodeLookup{client: client, clock: clock, enqueue: enqueue,
		requested: map[Key]string{}, requestedAt: map[Key]time.Time{}, notFoundAt: map[Key]time.Time{}}
	l.queue = controller.NewQueue("drain-nodes", l.sync)
	return l
}

// request requests a lookup of the Node with a provider id. The drain is enqueued
// when the result is known.
func (l *nodeLookup) request(key Key, providerID string) {
	l.mu.Lock()
	l.requested[key] = providerID
	if _, ok := l.requestedAt[key]; !ok {
		l.requestedAt[key] = l.clock.Now()
	}
	l.mu.Unlock()
	l.queue.AddAfter(allNodes, nodeListDelay)
}

// failed returns the error of the last list, nil for none.
func (l *nodeLookup) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// notFound reports whether a recent list did not contain the Node.
func (l *nodeLookup) notFound(key Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.notFoundAt[key]
	return ok && l.clock.Since(at) < nodeNotFoundTTL
}

// forget removes request and result of a drain.
func (l *nodeLookup) forget(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.requested, key)
	delete(l.requestedAt, key)
	delete(l.notFoundAt, key)
}

func (l *nodeLookup) sync(ctx context.Context, _ string) (time.Duration, error) {
	l.mu.Lock()
	requested := maps.Clone(l.requested)
	l.mu.Unlock()
	if len(requested) == 0 {
		return 0, nil
	}
	ids, err := listProviderIDs(ctx, l.client)
	l.mu.Lock()
	l.err = err
	l.mu.Unlock()
	if err != nil {
		// The drains report it.
		for key := range requested {
			l.enqueue(key, blockedAfter)
		}
		return 0, err
	}
	for key, providerID := range requested {
		l.setResult(key, providerID, ids[providerid.Key(providerID)], len(ids[""]) > 0)
	}
	return 0, nil
}

// setResult stores the result of a lookup: candidates are the provider ids of the
// Nodes that may match, and unidentified is set if a Node has none. Such a Node may be
// the right one, so that the lookup is repeated for a while.
func (l *nodeLookup) setResult(key Key, providerID string, candidates []string, unidentified bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requested[key] != providerID {
		return
	}
	delete(l.requested, key)
	for _, id := range candidates {
		if providerid.Match(providerID, id) {
			l.enqueue(key, nodeCacheDelay)
			return
		}
	}
	if unidentified && l.clock.Since(l.requestedAt[key]) < unidentifiedNodeTimeout {
		l.enqueue(key, unidentifiedNodePeriod)
		return
	}
	l.notFoundAt[key] = l.clock.Now()
	l.enqueue(key, 0)
}
