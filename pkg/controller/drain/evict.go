// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/controller"
)

const (
	// evictors bound how many evictions are under way.
	evictors = 64
	// A Pod is tried again after a delay that doubles between these two, prolonged
	// by up to jitter. So no Pod is tried twice within a second, and one that its
	// budget allows to go is gone a few seconds later.
	firstTry = time.Second
	lastTry  = 4 * time.Second
	jitter   = 0.25
	// tryTimeout bounds one try. The API server may ask for a pause of 10 s, which
	// the client would take: the next try is to come sooner.
	tryTimeout = lastTry
	// blockedAfter is how long evictions of a Pod fail until that is reported.
	blockedAfter = 15 * time.Second
	// minGrace is the least grace period in seconds, defaultGrace that of a Pod
	// that has none.
	minGrace     = 1
	defaultGrace = 30
)

// evictions evicts Pods, each until it is not wanted any more. Its queue has the
// UIDs of Pods for keys, so that a Pod that holds out delays no other.
type evictions struct {
	client kubernetes.Interface
	clock  clock.PassiveClock
	// wake asks for a sync of a drain, because what it is blocked by has changed.
	wake  func(drain cache.ObjectName)
	queue *controller.Queue[types.UID]

	mu      sync.Mutex
	pods    map[types.UID]*eviction
	byDrain map[cache.ObjectName]sets.Set[types.UID]
}

// eviction is a Pod to be evicted.
type eviction struct {
	// drains want it: more than one when instances claim the same Node. One that none
	// wants any more is remembered until it might be tried again.
	drains   sets.Set[cache.ObjectName]
	node     string
	pod      *corev1.Pod
	deadline time.Time
	// next is when it may be tried again, tries how often it was.
	next  time.Time
	tries int
	// failing is since when every try has failed, blocked what is told of it.
	failing time.Time
	blocked *blockage
}

func (p *eviction) wake(wake func(drain cache.ObjectName)) {
	for drain := range p.drains {
		wake(drain)
	}
}

func newEvictions(client kubernetes.Interface, clock clock.PassiveClock, wake func(cache.ObjectName)) *evictions {
	e := &evictions{
		client:  client,
		clock:   clock,
		wake:    wake,
		pods:    make(map[types.UID]*eviction),
		byDrain: make(map[cache.ObjectName]sets.Set[types.UID]),
	}
	e.queue = controller.NewQueue("drain-evictions", e.sync)
	return e
}

// want makes pods, and no others, those that are evicted for a drain. They are to
// end by deadline; a zero one is none.
func (e *evictions) want(drain cache.ObjectName, node *corev1.Node, pods []*corev1.Pod, deadline time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wanted := sets.New[types.UID]()
	for _, pod := range pods {
		wanted.Insert(pod.UID)
		known, ok := e.pods[pod.UID]
		if !ok {
			known = &eviction{drains: sets.New[cache.ObjectName]()}
			e.pods[pod.UID] = known
		}
		if known.drains.Len() == 0 || !known.deadline.Equal(deadline) {
			// It may have been given up at the former deadline.
			e.queue.Add(pod.UID)
		}
		known.drains.Insert(drain)
		known.node, known.pod, known.deadline = node.Name, pod, deadline
	}
	for uid := range e.byDrain[drain].Difference(wanted) {
		e.release(drain, uid)
	}
	e.byDrain[drain] = wanted
	if len(wanted) == 0 {
		delete(e.byDrain, drain)
	}
}

// drop evicts no Pod for a drain any more.
func (e *evictions) drop(drain cache.ObjectName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for uid := range e.byDrain[drain] {
		e.release(drain, uid)
	}
	delete(e.byDrain, drain)
}

// release takes a Pod from a drain. It is called with the lock.
func (e *evictions) release(drain cache.ObjectName, uid types.UID) {
	pod := e.pods[uid]
	pod.drains.Delete(drain)
	if pod.drains.Len() == 0 {
		e.queue.Add(uid)
	}
	// The deadline may have been that of the drain that is over.
	pod.wake(e.wake)
}

// blocked are the evictions of a drain that fail, by Pod.
func (e *evictions) blocked(drain cache.ObjectName) []blockage {
	e.mu.Lock()
	defer e.mu.Unlock()
	var blocked []blockage
	for uid := range e.byDrain[drain] {
		if pod := e.pods[uid]; pod.blocked != nil {
			blocked = append(blocked, *pod.blocked)
		}
	}
	slices.SortFunc(blocked, func(a, b blockage) int { return cmp.Compare(a.message, b.message) })
	return blocked
}

// sync tries to evict one Pod.
func (e *evictions) sync(ctx context.Context, uid types.UID) (time.Duration, error) {
	now := e.clock.Now()
	try, early := e.due(uid, now)
	if try == nil {
		return early, nil
	}
	limited, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	err := e.client.PolicyV1().Evictions(try.pod.Namespace).Evict(limited, newEviction(try.pod, try.deadline, now))
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	answer := judge(err)
	if answer == refused {
		evictionsRefused.Inc()
	}
	klog.FromContext(ctx).V(2).Info("Eviction tried", "pod", klog.KObj(try.pod), "node", try.node, "answer", answer, "err", err)
	if e.tried(uid, answer, now) {
		budgets, failed := e.budgets(ctx, try.pod)
		blocked := newBlockage(try.node, try.pod, budgets, err)
		blocked.unnamed = failed != nil
		e.block(uid, blocked)
	}
	return e.pause(uid), nil
}

// due is a copy of the eviction if it is to be tried now, or nil and in how long
// it is, 0 for never.
func (e *evictions) due(uid types.UID, now time.Time) (*eviction, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pod, ok := e.pods[uid]
	switch {
	case !ok:
		return nil, 0
	case now.Before(pod.next):
		return nil, pod.next.Sub(now)
	case pod.drains.Len() == 0:
		delete(e.pods, uid)
		return nil, 0
	case !pod.deadline.IsZero() && !now.Before(pod.deadline):
		return nil, 0
	}
	return new(*pod), 0
}

// tried notes the answer to a try that began at began, and tells whether the Pod
// is blocked and it is to be found out by what.
func (e *evictions) tried(uid types.UID, answer answer, began time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	pod, ok := e.pods[uid]
	if !ok {
		return false
	}
	pod.next = began.Add(delay(pod.tries))
	pod.tries++
	switch answer {
	case refused, failed:
		if pod.failing.IsZero() {
			pod.failing = began
		}
		return (pod.blocked == nil || pod.blocked.unnamed) && e.clock.Since(pod.failing) >= blockedAfter
	default:
		// The watch will show it. If it does not, the next try will not come soon.
		pod.next = began.Add(delay(longest))
		pod.failing = time.Time{}
		if pod.blocked != nil {
			pod.blocked = nil
			pod.wake(e.wake)
		}
		return false
	}
}

// block notes what a Pod is blocked by.
func (e *evictions) block(uid types.UID, by *blockage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if pod, ok := e.pods[uid]; ok {
		pod.blocked = by
		pod.wake(e.wake)
	}
}

// pause is how long the next try of a Pod has to wait, 0 when there is none.
func (e *evictions) pause(uid types.UID) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if pod, ok := e.pods[uid]; ok {
		return until(pod.next, e.clock.Now())
	}
	return 0
}

// longest is a number of tries after which the delay is the longest.
const longest = 8

// delay is the time between the beginnings of two tries of a Pod, after so many
// before.
func delay(tries int) time.Duration {
	return wait.Jitter(min(firstTry<<min(tries, longest), lastTry), jitter)
}

// newEviction is what the API server is asked for. It is about this very Pod and
// no successor of its name.
func newEviction(pod *corev1.Pod, deadline, now time.Time) *policyv1.Eviction {
	return &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To(grace(pod, deadline, now)),
			Preconditions:      &metav1.Preconditions{UID: ptr.To(pod.UID)},
		},
	}
}

// grace is the grace period of a Pod in seconds: its own, or until the deadline if
// that is sooner, and never none.
func grace(pod *corev1.Pod, deadline, now time.Time) int64 {
	seconds := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, defaultGrace)
	if !deadline.IsZero() {
		seconds = min(seconds, int64(deadline.Sub(now)/time.Second))
	}
	return max(seconds, minGrace)
}
