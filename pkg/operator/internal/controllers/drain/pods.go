// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
)

// finished reports whether all containers of a Pod have terminated for good.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// controlledByDaemonSet reports whether a DaemonSet controls a Pod.
func controlledByDaemonSet(pod *corev1.Pod) bool {
	controller := metav1.GetControllerOfNoCopy(pod)
	return controller != nil && controller.Kind == "DaemonSet"
}

// blocksDrain reports whether a Pod that has to leave blocks the drain of its Node.
// A finished Pod does not, nor does a Pod whose grace period is over on a Node that
// cannot confirm its deletion.
func (s *state) blocksDrain(pod *corev1.Pod, node *corev1.Node, now time.Time) bool {
	if finished(pod) {
		return false
	}
	return !unreachable(node) || pod.DeletionTimestamp == nil || now.Before(s.gracePeriodEnd(pod, now))
}

// gracePeriodEnd returns when the grace period of a Pod that is being deleted is over at
// the latest. It is measured from the first observation of the deletion, because the
// deletion timestamp is by the clock of the API server.
func (s *state) gracePeriodEnd(pod *corev1.Pod, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	since, ok := s.deletions[pod.UID]
	if !ok {
		since = now
		s.deletions[pod.UID] = since
	}
	return since.Add(time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
}

// classifyPods finds out by a live list which Pods of a Node have to leave, and
// returns their number. While DaemonSets cannot be read, the others are evicted.
func (c *Controller) classifyPods(ctx context.Context, s *state, node *corev1.Node) (int, error) {
	// A Pod that the watch shows before the list is in the list or was deleted.
	watched := s.startList(c.clock.Now())
	pods, unreadableErr, err := c.listEvictable(ctx, s, node)
	if err != nil {
		return 0, err
	}
	classified, leaving, unreadable := sets.New[types.UID](), sets.New[types.UID](), sets.New[types.UID]()
	for i := range pods {
		classified.Insert(pods[i].UID)
		leaving.Insert(pods[i].UID)
	}
	for _, pod := range watched {
		classified.Insert(pod.UID)
		if unreadableErr != nil && controlledByDaemonSet(pod) && !leaving.Has(pod.UID) {
			unreadable.Insert(pod.UID)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.classified, s.leaving = classified, leaving
	s.unreadable, s.unreadableErr = unreadable, unreadableErr
	return len(pods), nil
}

// observePods returns the state of the Pods of a Node from the watch, so that the
// many changes of Pods cost no requests.
func (c *Controller) observePods(ctx context.Context, s *state, node *corev1.Node, now time.Time) (podsObservation, error) {
	s.mu.Lock()
	watch, classified, leaving, listAfter := s.watch, s.classified, s.leaving, s.listAfter
	unreadable, unreadableErr := s.unreadable, s.unreadableErr
	s.mu.Unlock()
	if watch == nil || watch.node != node.Name {
		return podsObservation{}, nil
	}
	observed := podsObservation{watched: true, synced: watch.synced(), listAfter: listAfter}
	if !observed.synced {
		return observed, nil
	}
	observed.classified = true
	if unreadableErr != nil {
		observed.readAgainAt = listAfter.Add(unreadablePeriod)
		observed.classified = now.Before(observed.readAgainAt)
	}
	var staying []*corev1.Pod
	for _, pod := range watch.pods() {
		switch {
		case unreadable.Has(pod.UID):
		case !classified.Has(pod.UID):
			observed.classified = false
		case !leaving.Has(pod.UID):
			staying = append(staying, pod)
		case s.blocksDrain(pod, node, now):
			observed.remaining = append(observed.remaining, pod)
			s.observeDeletion(&observed, pod, node, now)
		}
	}
	slices.SortFunc(observed.remaining, func(a, b *corev1.Pod) int { return strings.Compare(string(a.UID), string(b.UID)) })
	observed.emptySince = s.setEmpty(observed.classified && len(observed.remaining) == 0 && unreadableErr == nil, now)
	if observed.emptySince.IsZero() {
		return observed, nil
	}
	var err error
	observed.attached, err = c.attachedVolumes(ctx, node.Name, staying)
	return observed, err
}

// observeDeletion adds until when a remaining Pod that is being deleted may take.
func (s *state) observeDeletion(observed *podsObservation, pod *corev1.Pod, node *corev1.Node, now time.Time) {
	if pod.DeletionTimestamp == nil {
		return
	}
	end := s.gracePeriodEnd(pod, now)
	stuckAt := end.Add(blockedAfter)
	switch {
	case unreachable(node):
		observed.gracePeriodEnd = earliest(observed.gracePeriodEnd, end)
	case now.Before(stuckAt):
		observed.stuckAt = earliest(observed.stuckAt, stuckAt)
	default:
		observed.stuck = append(observed.stuck, pod)
	}
}

// notDeleted returns the Pods without a deletion timestamp.
func notDeleted(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}
