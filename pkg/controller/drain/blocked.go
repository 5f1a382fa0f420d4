// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// answer is how a try to evict a Pod ended.
type answer string

const (
	accepted answer = "accepted"
	// gone: there is no such Pod; the watch will show it.
	gone answer = "gone"
	// refused: by a budget, by more than one, or by something else that the API
	// server has named.
	refused answer = "refused"
	// failed: there was no answer.
	failed answer = "failed"
)

// judge tells what the answer to an eviction means.
func judge(err error) answer {
	switch {
	case err == nil:
		return accepted
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return gone
	}
	if refusal := (apierrors.APIStatus)(nil); errors.As(err, &refusal) {
		return refused
	}
	return failed
}

// blockage is what keeps a Node from being drained.
type blockage struct {
	// pod is the Pod that cannot be evicted, nil when it is something else.
	pod *corev1.Pod
	// message names it, in words that stay the same from try to try; note says more.
	message, note string
	// reason is that of the event.
	reason string
	// unnamed: the budgets could not be read.
	unnamed bool
}

// newBlockage says that a Pod cannot be evicted, because of budgets as far as they
// are known.
func newBlockage(node string, pod *corev1.Pod, budgets []string, err error) *blockage {
	message := fmt.Sprintf("Node %s: Pod %s cannot be evicted", node, klog.KObj(pod))
	switch len(budgets) {
	case 0:
	case 1:
		message += ", PodDisruptionBudget " + budgets[0]
	default:
		message += ", more than one PodDisruptionBudget: " + strings.Join(budgets, ", ")
	}
	return &blockage{pod: pod, message: message, note: message + ": " + words(err), reason: v1beta1.ReasonDrainBlocked}
}

// words are the server's own in an answer to an eviction. The message of a refusal
// is the same for all budgets, its cause names the one.
func words(err error) string {
	var refusal apierrors.APIStatus
	if !errors.As(err, &refusal) {
		return err.Error()
	}
	status := refusal.Status()
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			if cause.Type == policyv1.DisruptionBudgetCause {
				return cause.Message
			}
		}
	}
	return status.Message
}

// budgets are the names of the PodDisruptionBudgets that cover a Pod, as far as
// they can be read. A refusal because of more than one names none.
func (e *evictions) budgets(ctx context.Context, pod *corev1.Pod) ([]string, error) {
	list, err := e.client.PolicyV1().PodDisruptionBudgets(pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot find out which PodDisruptionBudget covers a Pod", "pod", klog.KObj(pod))
		return nil, err
	}
	var names []string
	for _, budget := range list.Items {
		// A selector that cannot be read selects nothing, nor does none.
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			names = append(names, budget.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
