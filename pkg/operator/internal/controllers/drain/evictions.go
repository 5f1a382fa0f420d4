// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/controller"
)

// evictions evicts Pods, each as long as a drain requests it. The keys of its queue
// are UIDs of Pods, so that a Pod that cannot be evicted does not delay others.
type evictions struct {
	client  kubernetes.Interface
	clock   clock.PassiveClock
	metrics *metrics
	// enqueue enqueues a drain, because its blockages have changed.
	enqueue func(Key)
	queue   *controller.Queue[types.UID]

	mu      sync.Mutex
	pods    map[types.UID]*eviction
	byDrain map[Key]sets.Set[types.UID]
}

// eviction is a Pod to be evicted.
type eviction struct {
	// drains request the eviction; there are several when instances claim the same
	// Node. An eviction that no drain requests is kept until the time of its next
	// attempt.
	drains   sets.Set[Key]
	node     string
	pod      *corev1.Pod
	deadline time.Time
	// notBefore is the earliest time of the next attempt.
	notBefore time.Time
	backoff   wait.Backoff
	// failingSince is the time since which all attempts have failed, zero if the last attempt
	// did not fail.
	failingSince time.Time
	blockage     *blockage
}

func newEvictions(client kubernetes.Interface, clock clock.PassiveClock, metrics *metrics, enqueue func(Key)) *evictions {
	e := &evictions{
		client:  client,
		clock:   clock,
		metrics: metrics,
		enqueue: enqueue,
		pods:    make(map[types.UID]*eviction),
		byDrain: make(map[Key]sets.Set[types.UID]),
	}
	e.queue = controller.NewQueue("drain-evictions", e.sync)
	return e
}

// set makes pods the Pods that are evicted for a drain. No attempt is made after
// deadline, unless deadline is zero.
func (e *evictions) set(drain Key, node *corev1.Node, pods []*corev1.Pod, deadline time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	requested := sets.New[types.UID]()
	for _, pod := range pods {
		requested.Insert(pod.UID)
		known, ok := e.pods[pod.UID]
		if !ok {
			known = &eviction{drains: sets.New[Key](), backoff: evictionBackoff}
			e.pods[pod.UID] = known
		}
		if known.drains.Len() == 0 || !known.deadline.Equal(deadline) {
			// The attempts may have stopped at the previous deadline.
			e.queue.Add(pod.UID)
		}
		known.drains.Insert(drain)
		known.node, known.pod, known.deadline = node.Name, pod, deadline
	}
	for uid := range e.byDrain[drain].Difference(requested) {
		e.release(drain, uid)
	}
	e.byDrain[drain] = requested
	if len(requested) == 0 {
		delete(e.byDrain, drain)
	}
}

// drop stops all evictions of a drain.
func (e *evictions) drop(drain Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for uid := range e.byDrain[drain] {
		e.release(drain, uid)
	}
	delete(e.byDrain, drain)
}

// release removes a drain from an eviction. mu must be locked.
func (e *evictions) release(drain Key, uid types.UID) {
	pod := e.pods[uid]
	pod.drains.Delete(drain)
	if pod.drains.Len() == 0 {
		e.queue.Add(uid)
	}
	// The other drains set their deadline, which may differ.
	e.enqueueDrains(pod)
}

// enqueueDrains enqueues all drains of an eviction. mu must be locked.
func (e *evictions) enqueueDrains(pod *eviction) {
	for drain := range pod.drains {
		e.enqueue(drain)
	}
}

// blockages returns the failing evictions of a drain, sorted by message.
func (e *evictions) blockages(drain Key) []blockage {
	e.mu.Lock()
	defer e.mu.Unlock()
	var blockages []blockage
	for uid := range e.byDrain[drain] {
		if pod := e.pods[uid]; pod.blockage != nil {
			blockages = append(blockages, *pod.blockage)
		}
	}
	slices.SortFunc(blockages, func(a, b blockage) int { return cmp.Compare(a.message, b.message) })
	return blockages
}

// sync attempts to evict a Pod.
func (e *evictions) sync(ctx context.Context, uid types.UID) (time.Duration, error) {
	now := e.clock.Now()
	due, delay := e.due(uid, now)
	if due == nil {
		return delay, nil
	}
	limited, cancel := context.WithTimeout(ctx, evictionTimeout)
	defer cancel()
	err := e.client.PolicyV1().Evictions(due.pod.Namespace).Evict(limited, newEviction(due.pod, due.deadline, now))
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	result := evictionResultOf(err)
	if result == evictionRejected {
		e.metrics.evictionsRefused.Inc()
	}
	klog.FromContext(ctx).V(2).Info("Eviction attempted", "pod", klog.KObj(due.pod), "node", due.node, "result", result, "err", err)
	if failingSince, blocked := e.setResult(uid, result, now); blocked {
		budgets, budgetsErr := e.budgets(ctx, due.pod)
		blockage := newUnevictablePod(due.node, due.pod, budgets, err, failingSince)
		blockage.budgetsUnknown = budgetsErr != nil
		e.setBlockage(uid, blockage)
	}
	return e.nextDelay(uid), nil
}

// due returns a copy of an eviction if an attempt is due, else nil and the delay until the
// next attempt, 0 if there will be no attempt.
func (e *evictions) due(uid types.UID, now time.Time) (*eviction, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pod, ok := e.pods[uid]
	switch {
	case !ok:
		return nil, 0
	case now.Before(pod.notBefore):
		return nil, pod.notBefore.Sub(now)
	case pod.drains.Len() == 0:
		delete(e.pods, uid)
		return nil, 0
	case !pod.deadline.IsZero() && !now.Before(pod.deadline):
		return nil, 0
	}
	return new(*pod), 0
}

// setResult stores the result of an attempt. It returns the time since which all attempts
// have failed, and whether the Pod counts as blocked and its disruption budgets are not known.
func (e *evictions) setResult(uid types.UID, result evictionResult, startedAt time.Time) (failingSince time.Time, blocked bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pod, ok := e.pods[uid]
	if !ok {
		return time.Time{}, false
	}
	pod.notBefore = startedAt.Add(pod.backoff.Step())
	switch result {
	case evictionRejected, evictionFailed:
		if pod.failingSince.IsZero() {
			pod.failingSince = startedAt
		}
		blocked = (pod.blockage == nil || pod.blockage.budgetsUnknown) && e.clock.Since(pod.failingSince) >= blockedAfter
		return pod.failingSince, blocked
	default:
		// The watch of Pods will show the deletion. If it does not, the next attempt has
		// time.
		pod.notBefore = startedAt.Add(wait.Jitter(evictionBackoff.Cap, evictionBackoff.Jitter))
		pod.failingSince = time.Time{}
		if pod.blockage != nil {
			pod.blockage = nil
			e.enqueueDrains(pod)
		}
		return time.Time{}, false
	}
}

// setBlockage stores the reason why a Pod cannot be evicted.
func (e *evictions) setBlockage(uid types.UID, blockage *blockage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if pod, ok := e.pods[uid]; ok {
		pod.blockage = blockage
		e.enqueueDrains(pod)
	}
}

// nextDelay returns the delay until the next attempt, 0 if the Pod is no longer evicted.
func (e *evictions) nextDelay(uid types.UID) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if pod, ok := e.pods[uid]; ok {
		return delayUntil(pod.notBefore, e.clock.Now())
	}
	return 0
}

// evictionResult is the result of an attempt to evict a Pod.
type evictionResult string

const (
	evictionAccepted evictionResult = "accepted"
	// evictionNotFound: the Pod was deleted; the watch of Pods will show it.
	evictionNotFound evictionResult = "notFound"
	// evictionRejected: the API server returned an error, because of a disruption budget,
	// because several budgets select the Pod, or for another reason.
	evictionRejected evictionResult = "rejected"
	// evictionFailed: there was no response.
	evictionFailed evictionResult = "failed"
)

// evictionResultOf returns what the error of an eviction request means.
func evictionResultOf(err error) evictionResult {
	switch {
	case err == nil:
		return evictionAccepted
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return evictionNotFound
	}
	if status := (apierrors.APIStatus)(nil); errors.As(err, &status) {
		return evictionRejected
	}
	return evictionFailed
}

// newEviction returns the request to evict a Pod. The precondition excludes a
// newer Pod of the same name.
func newEviction(pod *corev1.Pod, deadline, now time.Time) *policyv1.Eviction {
	return &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To(gracePeriodSeconds(pod, deadline, now)),
			Preconditions:      &metav1.Preconditions{UID: ptr.To(pod.UID)},
		},
	}
}

// gracePeriodSeconds returns the grace period of a Pod: its own, or the time until
// the deadline if that is shorter, and at least minGracePeriod.
func gracePeriodSeconds(pod *corev1.Pod, deadline, now time.Time) int64 {
	seconds := int64(gracePeriod(pod) / time.Second)
	if !deadline.IsZero() {
		seconds = min(seconds, int64(deadline.Sub(now)/time.Second))
	}
	return max(seconds, int64(minGracePeriod/time.Second))
}

// gracePeriod returns the grace period that a Pod has set, at least minGracePeriod.
func gracePeriod(pod *corev1.Pod) time.Duration {
	seconds := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, int64(defaultGracePeriod/time.Second))
	return max(time.Duration(seconds)*time.Second, minGracePeriod)
}
