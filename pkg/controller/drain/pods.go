// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubectl/pkg/drain"
)

// listPeriod keeps the lists of one drain apart. What the watch shows soon is not
// worth another, nor is every Pod of something that makes one after the other.
const listPeriod = time.Second

// evictable lists, live, the Pods of a Node that have to leave it before its
// machine goes. The package comment says which these are.
func (c *Controller) evictable(ctx context.Context, node *corev1.Node) ([]corev1.Pod, error) {
	helper := drain.Helper{
		Ctx:                 ctx,
		Client:              c.client,
		Force:               true,
		IgnoreAllDaemonSets: true,
		DeleteEmptyDirData:  true,
		AdditionalFilters: []drain.PodFilter{func(pod corev1.Pod) drain.PodDeleteStatus {
			if !holds(&pod, node, c.clock.Now()) {
				return drain.MakePodDeleteStatusSkip()
			}
			return drain.MakePodDeleteStatusOkay()
		}},
	}
	list, errs := helper.GetPodsForDeletion(node.Name)
	if len(errs) > 0 {
		// Some of these may be Pods whose DaemonSet could not be read.
		return nil, fmt.Errorf("list the Pods to evict from Node %s: %w", node.Name, utilerrors.NewAggregate(errs))
	}
	return list.Pods(), nil
}

// holds tells whether a Pod that has to leave holds up the drain of its Node. One
// that has finished does not, nor one whose grace period is over while its Node
// cannot tell of its end.
func holds(pod *corev1.Pod, node *corev1.Node, now time.Time) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	return !unreachable(node) || pod.DeletionTimestamp == nil || now.Before(pod.DeletionTimestamp.Time)
}

// sortPods finds out which Pods of a Node have to leave, by a live list, and
// returns how many.
func (c *Controller) sortPods(ctx context.Context, r *record, node *corev1.Node) (int, error) {
	// What the watch showed before the list began is in the list or gone.
	before := r.beginList(c.clock.Now())
	pods, err := c.evictable(ctx, node)
	if err != nil {
		return 0, err
	}
	known, leaving := sets.New[types.UID](), sets.New[types.UID]()
	for _, pod := range before {
		known.Insert(pod.UID)
	}
	for i := range pods {
		known.Insert(pods[i].UID)
		leaving.Insert(pods[i].UID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.leaving = known, leaving
	return len(pods), nil
}

// observePods is what is known about the Pods of a Node that is drained. It is
// read from the watch, so that the many changes of Pods cost no calls.
func (c *Controller) observePods(ctx context.Context, r *record, node *corev1.Node, now time.Time) (podsSeen, error) {
	r.mu.Lock()
	watch, known, leaving, listAfter := r.watch, r.known, r.leaving, r.listAfter
	r.mu.Unlock()
	if watch == nil || watch.node != node.Name {
		return podsSeen{}, nil
	}
	seen := podsSeen{watched: true, synced: watch.synced(), listAfter: listAfter}
	if !seen.synced {
		return seen, nil
	}
	seen.sorted = true
	var staying []*corev1.Pod
	for _, pod := range watch.pods() {
		switch {
		case !known.Has(pod.UID):
			seen.sorted = false
		case !leaving.Has(pod.UID):
			staying = append(staying, pod)
		case holds(pod, node, now):
			seen.remaining = append(seen.remaining, pod)
		}
	}
	slices.SortFunc(seen.remaining, func(a, b *corev1.Pod) int { return strings.Compare(string(a.UID), string(b.UID)) })
	seen.emptySince = r.empty(seen.sorted && len(seen.remaining) == 0, now)
	if seen.emptySince.IsZero() {
		return seen, nil
	}
	var err error
	seen.attached, err = c.attached(ctx, node.Name, staying)
	return seen, err
}

// empty notes whether the Node has no Pod left that has to leave, and returns
// since when, zero when it has.
func (r *record) empty(is bool, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !is:
		r.emptySince = time.Time{}
	case r.emptySince.IsZero():
		r.emptySince = now
	}
	return r.emptySince
}

// running are those of pods that nobody has deleted yet.
func running(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}
