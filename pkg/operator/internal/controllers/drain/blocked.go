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

// evictionResult is the result of an attempt to evict a Pod.
type evictionResult string

const (
	evictionAccepted evictionResult = "accepted"
	// evictionNotFound: the Pod was deleted; the watch of Pods will show it.
	evictionNotFound evictionResult = "notFound"
	// evictionRejected: the API server returned an error, because of one disruption
	// budget, of several, or for another reason.
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

// blockage is a reason why a Node cannot be drained.
type blockage struct {
	// pod is the Pod that cannot be evicted, nil for another reason.
	pod *corev1.Pod
	// message does not change from attempt to attempt; note is message with details.
	message, note string
	// reason is the reason of the event.
	reason string
	// budgetsUnknown is set when the disruption budgets could not be read.
	budgetsUnknown bool
}

// newBlockage returns the blockage by a Pod that cannot be evicted. budgets are the
// names of the disruption budgets that cover the Pod, if they are known.
func newBlockage(node string, pod *corev1.Pod, budgets []string, err error) *blockage {
	message := fmt.Sprintf("Node %s: Pod %s cannot be evicted", node, klog.KObj(pod))
	switch len(budgets) {
	case 0:
	case 1:
		message += ", PodDisruptionBudget " + budgets[0]
	default:
		message += ", more than one PodDisruptionBudget: " + strings.Join(budgets, ", ")
	}
	return &blockage{pod: pod, message: message, note: message + ": " + evictionMessage(err), reason: v1beta1.ReasonDrainBlocked}
}

// newStuckPod returns the blockage by a Pod that does not terminate.
func newStuckPod(node string, pod *corev1.Pod) blockage {
	message := fmt.Sprintf("Node %s: Pod %s is being deleted and does not terminate", node, klog.KObj(pod))
	return blockage{pod: pod, message: message, note: message + ": its grace period is over", reason: v1beta1.ReasonDrainBlocked}
}

// newAmbiguity returns the blockage by several Nodes with the provider id of one
// instance.
func newAmbiguity(providerID string, nodes []*corev1.Node) blockage {
	names := make([]string, len(nodes))
	for i, node := range nodes {
		names[i] = node.Name
	}
	slices.Sort(names)
	message := fmt.Sprintf("provider id %q matches Nodes %s", providerID, strings.Join(names, ", "))
	return blockage{message: message, note: message + ": none of them is drained", reason: v1beta1.ReasonAmbiguousProviderID}
}

// newFailure returns the blockage by requests that fail.
func newFailure(instance string, nodes []*corev1.Node, err error) blockage {
	message := fmt.Sprintf("instance %s cannot be drained: %v", instance, err)
	if len(nodes) > 0 {
		message = fmt.Sprintf("Node %s cannot be drained: %v", nodes[0].Name, err)
	}
	return blockage{message: message, note: message, reason: v1beta1.ReasonDrainBlocked}
}

// evictionMessage returns the most specific message of a failed eviction. The status
// message is the same for all disruption budgets; its cause names the budget.
func evictionMessage(err error) string {
	var apiStatus apierrors.APIStatus
	if !errors.As(err, &apiStatus) {
		return err.Error()
	}
	status := apiStatus.Status()
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			if cause.Type == policyv1.DisruptionBudgetCause {
				return cause.Message
			}
		}
	}
	return status.Message
}

// budgets returns the names of the PodDisruptionBudgets that cover a Pod. The API
// server names none of them when there are several.
func (e *evictions) budgets(ctx context.Context, pod *corev1.Pod) ([]string, error) {
	list, err := e.client.PolicyV1().PodDisruptionBudgets(pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Listing PodDisruptionBudgets of a blocked Pod failed", "pod", klog.KObj(pod))
		return nil, err
	}
	var names []string
	for _, budget := range list.Items {
		// An invalid or missing selector selects no Pod.
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			names = append(names, budget.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
