// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"nstance.dev/operator/pkg/base/drainrule"
	"nstance.dev/operator/pkg/plugin/objects"
)

// terminationDelay is the time after its grace period after which a Pod counts as blocking, as
// in the operator: the kubelet kills the containers at the end of the grace period
// (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination).
const terminationDelay = 15 * time.Second

// addPods adds the Pods that are left and the reasons that block them.
func (d *Drain) addPods(s *objects.Snapshot, node *corev1.Node) {
	read := s.PodsOn(node.Name)
	d.PodsUnknown = read.Unknown
	rules := d.rulesOf(s, node)
	for i := range read.Items {
		pod := &read.Items[i]
		rule, unknown := rules.of(pod)
		if rule.Behavior == drainrule.Skip || stays(pod) {
			d.Staying++
			continue
		}
		left := leaving(s, pod, rule)
		if len(left.Blockers) == 0 && left.Unknown == "" {
			left.Unknown = unknown
		}
		d.Pods = append(d.Pods, left)
	}
	slices.SortFunc(d.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// stays reports whether a Pod does not have to leave, whatever its rule is (docs/drains.md#steps).
func stays(pod *corev1.Pod) bool {
	controller := metav1.GetControllerOfNoCopy(pod)
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror || controller != nil && controller.Kind == "DaemonSet" ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// leaving returns a Pod that has to leave, with the reasons that block it.
func leaving(s *objects.Snapshot, pod *corev1.Pod, rule drainrule.Rule) Pod {
	left := Pod{Namespace: pod.Namespace, Name: pod.Name, Order: rule.Order, Rule: rule.Source}
	if pod.DeletionTimestamp != nil {
		// Finalizers do not block a drain once the containers have exited.
		left.TerminatesAt, left.Finalizers = pod.DeletionTimestamp.Time, pod.Finalizers
		if !s.Now.Before(left.TerminatesAt.Add(terminationDelay)) {
			left.Blockers = []string{"has not terminated, although its grace period is over"}
		}
		return left
	}
	if rule.Behavior == drainrule.WaitCompleted {
		left.MayComplete = rule.Source
		return left
	}
	budgets := s.BudgetsIn(pod.Namespace)
	if budgets.Unknown != "" {
		left.Unknown = budgets.Unknown
		return left
	}
	left.Blockers = blockedBy(selecting(budgets.Items, pod))
	return left
}

// selecting returns the budgets that select a Pod, sorted by name.
func selecting(budgets []policyv1.PodDisruptionBudget, pod *corev1.Pod) []*policyv1.PodDisruptionBudget {
	var found []*policyv1.PodDisruptionBudget
	for i := range budgets {
		// An invalid or missing selector selects no Pod.
		selector, err := metav1.LabelSelectorAsSelector(budgets[i].Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			found = append(found, &budgets[i])
		}
	}
	slices.SortFunc(found, func(a, b *policyv1.PodDisruptionBudget) int { return cmp.Compare(a.Name, b.Name) })
	return found
}

// blockedBy returns why the budgets of a Pod do not allow its eviction, nil if they do. The
// eviction API supports one budget for each Pod
// (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/).
func blockedBy(budgets []*policyv1.PodDisruptionBudget) []string {
	switch {
	case len(budgets) == 0:
		return nil
	case len(budgets) > 1:
		names := make([]string, len(budgets))
		for i, budget := range budgets {
			names[i] = budget.Name
		}
		return []string{"more than one PodDisruptionBudget selects it, so it cannot be evicted: " + strings.Join(names, ", ")}
	case budgets[0].Status.DisruptionsAllowed > 0:
		return nil
	}
	status := budgets[0].Status
	return []string{fmt.Sprintf("PodDisruptionBudget %s allows 0 disruptions: %d of %d Pods are healthy, and %d have to be",
		budgets[0].Name, status.CurrentHealthy, status.ExpectedPods, status.DesiredHealthy)}
}
