// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/providerid"
)

// cacheLag is how long the cache has to show a Node that a live list has.
const cacheLag = time.Second

// batch is how long a list waits for others that want one: notices come in
// bursts.
const batch = 50 * time.Millisecond

// absentFor is how long an answer that there is no Node counts. A shard that
// cannot be reached for longer gets another one.
const absentFor = time.Minute

// lookups finds out, by listing all Nodes live, that there is none of a provider
// id. One list answers everybody who asked before it began.
type lookups struct {
	client kubernetes.Interface
	clock  clock.PassiveClock
	// wake asks for a sync of a key, after a delay.
	wake  func(cache.ObjectName, time.Duration)
	queue *controller.Queue[string]

	mu    sync.Mutex
	asked map[cache.ObjectName]string
	// none is when it was found that there is no Node.
	none map[cache.ObjectName]time.Time
}

// allNodes is the one key of the queue.
const allNodes = "nodes"

func newLookups(client kubernetes.Interface, clock clock.PassiveClock, wake func(cache.ObjectName, time.Duration)) *lookups {
	l := &lookups{client: client, clock: clock, wake: wake, asked: map[cache.ObjectName]string{}, none: map[cache.ObjectName]time.Time{}}
	l.queue = controller.NewQueue("drain-nodes", l.sync)
	return l
}

// ask wants to know whether there is a Node of a provider id. The key is woken by
// the answer.
func (l *lookups) ask(key cache.ObjectName, providerID string) {
	l.mu.Lock()
	l.asked[key] = providerID
	l.mu.Unlock()
	l.queue.AddAfter(allNodes, batch)
}

// absent tells whether the answer was that there is none, not long ago.
func (l *lookups) absent(key cache.ObjectName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok := l.none[key]
	return ok && l.clock.Since(found) < absentFor
}

// forget forgets the answer.
func (l *lookups) forget(key cache.ObjectName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.asked, key)
	delete(l.none, key)
}

func (l *lookups) sync(ctx context.Context, _ string) (time.Duration, error) {
	l.mu.Lock()
	asked := maps.Clone(l.asked)
	l.mu.Unlock()
	if len(asked) == 0 {
		return 0, nil
	}
	found, err := l.list(ctx)
	if err != nil {
		return 0, err
	}
	for key, providerID := range asked {
		l.answer(key, providerID, found[providerid.Key(providerID)])
	}
	return 0, nil
}

// answer says which Nodes were found that may have a provider id.
func (l *lookups) answer(key cache.ObjectName, providerID string, found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked[key] != providerID {
		return
	}
	delete(l.asked, key)
	for _, id := range found {
		if providerid.Match(providerID, id) {
			l.wake(key, cacheLag)
			return
		}
	}
	l.none[key] = l.clock.Now()
	l.wake(key, 0)
}

// list is the provider ids of all Nodes, by their keys.
func (l *lookups) list(ctx context.Context) (map[string][]string, error) {
	found := map[string][]string{}
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return l.client.CoreV1().Nodes().List(ctx, options)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if node, ok := object.(*corev1.Node); ok {
			key := providerid.Key(node.Spec.ProviderID)
			found[key] = append(found[key], node.Spec.ProviderID)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	return found, nil
}
