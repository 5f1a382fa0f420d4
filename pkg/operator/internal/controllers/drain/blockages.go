// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// AddHandler adds a function that is called when the result of Summary or
// OfInstance has changed. It must return quickly. Add handlers before Run.
func (c *Controller) AddHandler(handler func(shard, group, instance string)) {
	c.progress.handlers = append(c.progress.handlers, handler)
}

// Summary returns how many instances of a group on a shard are being drained, how many of
// these drains are blocked, and those that have been blocked for the longest time, at most
// v1beta1.MaxBlockedDrains. It changes only when a drain starts, ends, becomes blocked or
// unblocked, or is blocked for another reason. The entries must not be changed.
func (c *Controller) Summary(shard, group string) (draining, blocked int, list []v1beta1.BlockedDrain) {
	p := c.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, drain := range p.drains {
		if key.Shard != shard || drain.group != group {
			continue
		}
		draining++
		if drain.blocked == nil {
			continue
		}
		blocked++
		if len(key.Instance) <= v1beta1.MaxBlockedDrainInstance {
			list = append(list, *drain.blocked)
		}
	}
	slices.SortFunc(list, func(a, b v1beta1.BlockedDrain) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), cmp.Compare(a.Instance, b.Instance))
	})
	return draining, blocked, list[:min(len(list), v1beta1.MaxBlockedDrains)]
}

// Waiting returns what the drains of a group on a shard wait for, sorted. These drains are not
// blocked: rules let Pods complete, or the Machine has a hook.
func (c *Controller) Waiting(shard, group string) []string {
	p := c.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	var messages []string
	for key, drain := range p.drains {
		if key.Shard == shard && drain.group == group && drain.waits() {
			messages = append(messages, drain.waiting)
		}
	}
	slices.Sort(messages)
	return messages
}

// OfInstance reports whether an instance is being drained, and whether the drain is
// blocked and by what. If it is not blocked, message is what it waits for, "" if it does not.
func (c *Controller) OfInstance(shard, id string) (blocked bool, message string, draining bool) {
	c.progress.mu.Lock()
	defer c.progress.mu.Unlock()
	drain, draining := c.progress.drains[Key{Shard: shard, Instance: id}]
	if drain.blocked == nil {
		return false, drain.waiting, draining
	}
	return true, drain.blocked.Message, draining
}

// progress contains the drains that other controllers report in the status of their objects.
type progress struct {
	metrics  *metrics
	handlers []func(shard, group, instance string)

	mu     sync.Mutex
	drains map[Key]drainProgress
}

// drainProgress is the state of a drain that is not acknowledged.
type drainProgress struct {
	group string
	// blocked is the entry in the status of the shard group, nil while the drain is not
	// blocked. It is replaced, and never changed.
	blocked *v1beta1.BlockedDrain
	// waiting is the Pod that may complete before the drain continues, or the hook of the Machine,
	// as a sentence, "" if the drain waits for neither.
	waiting string
}

// waits reports whether a drain waits, and is not blocked.
func (d *drainProgress) waits() bool { return d.blocked == nil && d.waiting != "" }

func newProgress(metrics *metrics) *progress {
	return &progress{metrics: metrics, drains: make(map[Key]drainProgress)}
}

// set stores that a drain is in progress, its blockages, and what it waits for.
func (p *progress) set(key Key, group string, blockages []blockage, waiting string) {
	p.update(key, &drainProgress{group: group, blocked: newBlockedDrain(key.Instance, blockages), waiting: waiting})
}

// waiting returns what a drain waits for, as set has stored it.
func (p *progress) waiting(key Key) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drains[key].waiting
}

// remove stores that a drain is not in progress.
func (p *progress) remove(key Key) { p.update(key, nil) }

// update replaces the state of a drain, nil if the drain is not in progress, and calls the
// handlers if it has changed.
func (p *progress) update(key Key, after *drainProgress) {
	p.mu.Lock()
	before, existed := p.drains[key]
	if existed == (after != nil) && (after == nil ||
		before.group == after.group && before.waiting == after.waiting && equality.Semantic.DeepEqual(before.blocked, after.blocked)) {
		p.mu.Unlock()
		return
	}
	if after != nil {
		p.drains[key] = *after
	} else {
		delete(p.drains, key)
	}
	p.updateMetrics()
	p.mu.Unlock()

	for _, handler := range p.handlers {
		if existed {
			handler(key.Shard, before.group, key.Instance)
		}
		if after != nil && (!existed || after.group != before.group) {
			handler(key.Shard, after.group, key.Instance)
		}
	}
}

// updateMetrics sets the gauges. mu must be locked.
func (p *progress) updateMetrics() {
	waiting, blocked := 0, 0
	for _, drain := range p.drains {
		switch {
		case drain.blocked != nil:
			blocked++
		case drain.waits():
			waiting++
		}
	}
	p.metrics.setDrains(len(p.drains)-waiting-blocked, waiting, blocked)
}

// newBlockedDrain returns the entry about a drain in the status of its shard group, nil if
// there are no blockages. It describes the blockage that has existed for the longest time.
func newBlockedDrain(instance string, blockages []blockage) *v1beta1.BlockedDrain {
	if len(blockages) == 0 {
		return nil
	}
	first := slices.MinFunc(blockages, func(a, b blockage) int {
		return cmp.Or(a.since.Truncate(time.Second).Compare(b.since.Truncate(time.Second)), cmp.Compare(a.message, b.message))
	})
	entry := &v1beta1.BlockedDrain{
		Instance: instance, Node: first.node, Reason: first.reason, Message: first.message,
		PodDisruptionBudgets: first.budgets[:min(len(first.budgets), v1beta1.MaxBlockedDrainBudgets)],
		// The API server stores seconds. With fractions the status would always differ from
		// the stored status.
		Since:        metav1.NewTime(first.since).Rfc3339Copy(),
		OtherReasons: int32(len(blockages) - 1),
	}
	if first.pod != nil {
		entry.Pod = &v1beta1.BlockingPod{Namespace: first.pod.Namespace, Name: first.pod.Name}
	}
	more := ""
	if entry.OtherReasons > 0 {
		more = fmt.Sprintf(" (and %d more)", entry.OtherReasons)
	}
	entry.Message = truncate(entry.Message, v1beta1.MaxBlockedDrainMessage-len(more)) + more
	return entry
}

// blockage is a reason why a Node cannot be drained.
type blockage struct {
	// reason is the reason of the entry in status.blockedDrains.
	reason string
	// since is the time since which the reason exists.
	since time.Time
	// node is the name of the Node, empty if it is not known or not unique.
	node string
	// pod is the Pod that cannot be evicted or does not terminate, nil for another reason.
	pod *corev1.Pod
	// budgets are the names of the PodDisruptionBudgets that select the Pod. If they could
	// not be read, budgetsUnknown is set.
	budgets        []string
	budgetsUnknown bool
	// message does not change from attempt to attempt; note is message with details.
	message, note string
}

// eventReason returns the reason of the event about a blockage.
func (b *blockage) eventReason() string {
	switch b.reason {
	case v1beta1.ReasonAmbiguousProviderID, v1beta1.ReasonProviderIDMismatch, v1beta1.ReasonNodeOfOtherShard:
		return b.reason
	}
	return v1beta1.ReasonDrainBlocked
}

// newUnevictablePod returns the blockage by a Pod that cannot be evicted. budgets are the
// names of the disruption budgets that select the Pod, if they are known.
func newUnevictablePod(node string, pod *corev1.Pod, budgets []string, err error, since time.Time) *blockage {
	message := fmt.Sprintf("Node %s: Pod %s cannot be evicted", node, klog.KObj(pod))
	switch len(budgets) {
	case 0:
	case 1:
		message += ", PodDisruptionBudget " + budgets[0]
	default:
		message += ", more than one PodDisruptionBudget: " + strings.Join(budgets, ", ")
	}
	return &blockage{reason: v1beta1.ReasonPodNotEvictable, since: since, node: node, pod: pod, budgets: budgets,
		message: message, note: message + ": " + evictionMessage(err)}
}

// newStuckPod returns the blockage by a Pod that has not terminated since its grace period
// ended.
func newStuckPod(node string, stuck stuckPod) blockage {
	message := fmt.Sprintf("Node %s: Pod %s is being deleted and does not terminate", node, klog.KObj(stuck.pod))
	return blockage{reason: v1beta1.ReasonPodNotTerminating, since: stuck.since, node: node, pod: stuck.pod,
		message: message, note: message + ": its grace period is over"}
}

// newWaiting returns what a drain waits for, "" if it does not wait for a Pod to complete. The
// time is by the clock of the shard, whose value does not change with each announcement.
func newWaiting(observed observation, next decision) string {
	if next.hooked {
		return newWaitingForHook(observed, next)
	}
	if len(next.await) == 0 {
		return ""
	}
	first := slices.MinFunc(next.await, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	message := fmt.Sprintf("Node %s: waits for Pod %s to complete", observed.nodes[0].Name, klog.KObj(first))
	if !observed.notice.DeleteAt.IsZero() {
		message += ", at the latest until " + observed.notice.DeleteAt.Add(-next.margin).UTC().Format(time.RFC3339)
	}
	message += fmt.Sprintf(" (%s)", observed.pods.rules[first.UID].Source)
	if more := len(next.await) - 1; more > 0 {
		message += fmt.Sprintf(" and for %d more", more)
	}
	return message
}

// newAmbiguity returns the blockage by several Nodes with the provider id of an instance.
func newAmbiguity(providerID string, nodes []*corev1.Node, since time.Time) blockage {
	names := make([]string, len(nodes))
	for i, node := range nodes {
		names[i] = node.Name
	}
	slices.Sort(names)
	message := fmt.Sprintf("provider id %q matches Nodes %s", providerID, strings.Join(names, ", "))
	return blockage{reason: v1beta1.ReasonAmbiguousProviderID, since: since,
		message: message, note: message + ": no Node is drained"}
}

// newMismatch returns the blockage by a Node that may be the Node of an instance, although it
// has another provider id.
func newMismatch(instance, providerID string, found *mismatch) blockage {
	message := fmt.Sprintf("instance %s: no Node has its provider id %q, and Node %s has its %s and the provider id %q",
		instance, providerID, found.node, found.common, found.providerID)
	return blockage{reason: v1beta1.ReasonProviderIDMismatch, since: found.since,
		message: message, note: message + ": no Node is drained"}
}

// newForeign returns the blockage by a Node that the shard may not name.
func newForeign(instance string, observed observation, since time.Time) blockage {
	b := blockage{reason: v1beta1.ReasonNodeOfOtherShard, since: since,
		message: fmt.Sprintf("instance %s: %s", instance, observed.foreign)}
	if len(observed.nodes) > 0 {
		b.node = observed.nodes[0].Name
	}
	b.note = b.message + ": no Node is drained"
	return b
}

// newFailure returns the blockage by requests that fail.
func newFailure(instance string, nodes []*corev1.Node, failing failure) blockage {
	b := blockage{reason: v1beta1.ReasonRequestsFailing, since: failing.since,
		message: fmt.Sprintf("instance %s cannot be drained: %v", instance, failing.err)}
	if len(nodes) > 0 {
		b.node = nodes[0].Name
		b.message = fmt.Sprintf("Node %s cannot be drained: %v", b.node, failing.err)
	}
	b.note = b.message
	return b
}

// evictionMessage returns the most specific message of a failed eviction. The status
// message is the same for all disruption budgets; its cause names the budget
// (https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go).
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

// budgets returns the names of the PodDisruptionBudgets that select a Pod, sorted. If there
// are several, the error of the eviction names no budget.
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
