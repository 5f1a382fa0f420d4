// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/base/poolplan"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/base/remediation"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/nodeless"
	"nstance.dev/operator/pkg/operator/shard"
)

// This file finds the instances to replace because of their Nodes: users have annotated them, or they are
// unhealthy and the pool has a policy for that.

// reasonReplacing is the reason of the event for instances whose replacement begins.
const reasonReplacing = "ReplacingInstances"

// maxListedUnhealthy is the number of Nodes that the condition Remediating names.
const maxListedUnhealthy = 3

// maxInstanceID is the longest id of an instance in a shard group.
const maxInstanceID = 63

// byRemediation is the index of the Nodes with the annotation. There are few, so that a sync looks
// at no other Nodes.
const byRemediation = "machinepool.remediation"

var remediationIndexers = cache.Indexers{byRemediation: func(obj any) ([]string, error) {
	if node, ok := obj.(*corev1.Node); ok && wantsRemediation(node) {
		return []string{byRemediation}, nil
	}
	return nil, nil
}}

// wantsRemediation reports whether the instance of a Node, which may be nil, is to be replaced.
func wantsRemediation(node *corev1.Node) bool {
	if node == nil {
		return false
	}
	_, wanted := node.Annotations[v1beta1.AnnotationRemediateInstance]
	return wanted
}

// remediationChanged enqueues the pools that have an instance with the Node's provider id, if the
// annotation of the Node was added or removed.
func (c *Controller) remediationChanged(before, after *corev1.Node) {
	if wantsRemediation(before) == wantsRemediation(after) {
		return
	}
	node := after
	if node == nil {
		node = before
	}
	for _, group := range c.nodes.ShardGroupsWith(node.Spec.ProviderID) {
		if pool := poolOf(group); pool != "" {
			c.queue.AddAfter(c.key(pool), shardGroupBatch)
		}
	}
}

// healthChanged enqueues the pools with a policy for remediation that have an instance with the Node's
// provider id, if a condition of the Node changed. nodeChanged handles other changes of the Node.
func (c *Controller) healthChanged(before, after *corev1.Node) {
	if before == nil || after == nil || after.Spec.ProviderID == "" ||
		equality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions) {
		return
	}
	for _, group := range c.nodes.ShardGroupsWith(after.Spec.ProviderID) {
		if pool, err := c.poolLister.Get(poolOf(group)); err == nil && pool.Spec.Remediation != nil {
			c.queue.AddAfter(c.key(pool.Name), shardGroupBatch)
		}
	}
}

// replacementCause is why an instance is to be replaced.
type replacementCause struct {
	// node is the name of the Node, "" if the instance has no Node.
	node string
	// problem is why the Node is unhealthy, "" if a user wants the replacement.
	problem string
}

// describe returns the Node, or the instance without a Node, and the problem.
func (c replacementCause) describe(id string) string {
	switch {
	case c.node == "" && c.problem == "":
		return "instance " + id
	case c.node == "":
		return fmt.Sprintf("instance %s (%s)", id, c.problem)
	case c.problem == "":
		return c.node
	}
	return fmt.Sprintf("%s (%s)", c.node, c.problem)
}

// remediationDecision is the decision of the policy for remediation of a pool.
type remediationDecision struct {
	policy remediation.Policy
	remediation.Decision
	// wait is when another Node becomes unhealthy, 0 for never.
	wait time.Duration
}

// delay returns the time until another Node becomes unhealthy, 0 for never.
func (r *remediationDecision) delay() time.Duration {
	if r == nil {
		return 0
	}
	return r.wait
}

// observeRemediation reads which instances of the pool are to be replaced. While the Nodes cannot
// be seen, nothing is known, and no request is taken back.
func (c *Controller) observeRemediation(observed *observation) {
	if !c.nodesSynced() || c.NodesReachable != nil && !c.NodesReachable() {
		return
	}
	nodes := map[string][]*corev1.Node{}
	for _, node := range controller.Indexed[corev1.Node](c.nodeIndex, byRemediation, byRemediation) {
		if key := providerid.Key(node.Spec.ProviderID); key != "" {
			nodes[key] = append(nodes[key], node)
		}
	}
	for i := range observed.shards {
		observed.shards[i].remediated = c.remediated(&observed.shards[i], nodes)
	}
	if observed.pool.Spec.Remediation != nil {
		c.checkNodes(observed)
	}
}

// checkNodes adds the instances that the policy of the pool wants to be replaced.
func (c *Controller) checkNodes(observed *observation) {
	now := c.clock.Now()
	r := &remediationDecision{policy: poolplan.RemediationPolicy(observed.pool.Spec.Remediation, distribute.Total(distribute.Sizes(observed.distributable)))}
	var instances []remediation.Instance
	shards := map[string]*shardState{}
	for i := range observed.shards {
		state := &observed.shards[i]
		shards[state.id] = state
		if state.reported == nil {
			continue
		}
		for n := range state.reported.Instances {
			instances = append(instances, c.checked(state, &state.reported.Instances[n], observed.nodeless))
		}
	}
	r.Decision = remediation.Decide(r.policy, instances, now)
	if !r.Next.IsZero() {
		r.wait = r.Next.Sub(now)
	}
	for _, replacement := range r.Replace {
		if wanted := shards[replacement.Shard].remediated; wanted[replacement.ID] == (replacementCause{}) {
			wanted[replacement.ID] = replacementCause{replacement.Node, replacement.Problem}
		}
	}
	observed.remediation = r
}

// checked converts an instance for package remediation. Its Node counts only if it belongs to the
// instance for certain.
func (c *Controller) checked(state *shardState, instance *shard.Instance, without nodeless.Found) remediation.Instance {
	converted := remediation.Instance{
		Shard: state.id, ID: instance.ID,
		Connected: state.remediated != nil && len(instance.ID) <= maxInstanceID,
		Named:     state.group != nil && slices.Contains(state.group.Spec.Replace, instance.ID),
		Leaving:   instance.State.IsTerminating() || state.draining.Has(instance.ID),
	}
	switch nodes, foreign := c.nodes.OfInstance(state.id, instance.ProviderID); {
	case instance.ProviderID == "" || foreign != "":
	case len(nodes) == 1:
		converted.Node = poolplan.HealthOf(nodes[0])
	case len(nodes) == 0:
		converted.NodelessSince = without.Since[instance.ProviderID]
	}
	return converted
}

// remediated returns the instances on a shard that users want to be replaced, by id, nil while the
// instances are not known. A Node that the shard may not name does not count, nor does one of several
// Nodes with a provider id.
func (c *Controller) remediated(state *shardState, nodes map[string][]*corev1.Node) map[string]replacementCause {
	if !state.configured || !state.synced || !state.reachable || state.reported == nil || state.reported.Progress == nil {
		return nil
	}
	wanted := map[string]replacementCause{}
	if len(nodes) == 0 {
		return wanted
	}
	for _, instance := range state.reported.Instances {
		if instance.State.IsTerminating() || len(instance.ID) > maxInstanceID {
			continue
		}
		for _, node := range nodes[providerid.Key(instance.ProviderID)] {
			if !providerid.Match(instance.ProviderID, node.Spec.ProviderID) {
				continue
			}
			if all, foreign := c.nodes.OfInstance(state.id, instance.ProviderID); len(all) == 1 && foreign == "" {
				wanted[instance.ID] = replacementCause{node: node.Name}
			}
		}
	}
	return wanted
}

// replace returns spec.replace of the shard group: the instances that are to be replaced, or what it
// has while they are not known.
func (s *shardState) replace() []string {
	switch {
	case s.remediated != nil:
		return slices.Sorted(maps.Keys(s.remediated))
	case s.group != nil:
		return s.group.Spec.Replace
	}
	return nil
}

// newReplacement is an instance whose replacement begins.
type newReplacement struct {
	replacementCause
	id, providerID string
}

// newReplacements returns the instances that a decision names for the first time.
func newReplacements(observed observation, d decision) (begin []newReplacement) {
	for _, want := range d.apply {
		at := slices.IndexFunc(observed.shards, func(s shardState) bool { return s.id == string(want.spec.Shard) })
		if at < 0 {
			continue
		}
		state := &observed.shards[at]
		for _, id := range want.spec.Replace {
			if state.group == nil || !slices.Contains(state.group.Spec.Replace, id) {
				begin = append(begin, newReplacement{state.remediated[id], id, state.providerID(id)})
			}
		}
	}
	return begin
}

// providerID returns the provider id of an instance, "" if the shard does not report it.
func (s *shardState) providerID(id string) string {
	if s.reported == nil {
		return ""
	}
	at := slices.IndexFunc(s.reported.Instances, func(i shard.Instance) bool { return i.ID == id })
	if at < 0 {
		return ""
	}
	return s.reported.Instances[at].ProviderID
}

// stillWanted reports whether the API server, too, has the reasons for which the replacements of
// instances begin: since the cache was filled, a user may have removed the annotation, a Node may have
// become healthy, or an instance may have got a Node.
func (c *Controller) stillWanted(ctx context.Context, observed observation, begin []newReplacement) (bool, error) {
	joined := map[string]bool{}
	if slices.ContainsFunc(begin, func(b newReplacement) bool { return b.node == "" }) {
		var err error
		if joined, err = c.readProviderIDs(ctx); err != nil {
			return false, err
		}
	}
	for _, b := range begin {
		if b.node == "" {
			if joined[providerid.Key(b.providerID)] {
				return false, nil
			}
			continue
		}
		list, err := c.workload.CoreV1().Nodes().List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, b.node).String(),
		})
		if err != nil {
			return false, fmt.Errorf("read Node %s, whose instance is to be replaced: %w", b.node, err)
		}
		if !slices.ContainsFunc(list.Items, func(node corev1.Node) bool {
			return node.Name == b.node && (wantsRemediation(&node) || b.problem != "" && observed.remediation.policy.IsUnhealthy(poolplan.HealthOf(&node), c.clock.Now()))
		}) {
			return false, nil
		}
	}
	return true, nil
}

// readProviderIDs returns the keys of the provider ids of all Nodes on the API server.
func (c *Controller) readProviderIDs(ctx context.Context) (map[string]bool, error) {
	keys := map[string]bool{}
	err := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return c.workload.CoreV1().Nodes().List(ctx, options)
	})).EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if node, ok := object.(*corev1.Node); ok {
			keys[providerid.Key(node.Spec.ProviderID)] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the Nodes, because an instance without a Node is to be replaced: %w", err)
	}
	return keys, nil
}

// condition returns the condition Remediating.
func (r *remediationDecision) condition() metav1.Condition {
	condition := metav1.Condition{Type: v1beta1.ConditionRemediating, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonNotRemediating}
	switch {
	case r.TooMany:
		condition.Status, condition.Reason = metav1.ConditionTrue, v1beta1.ReasonTooManyUnhealthy
		condition.Message = fmt.Sprintf("%d Nodes are unhealthy, more than the %d of spec.remediation.triggerIf, and no further instance is replaced", r.Failing, r.policy.Limit)
	case r.InFlight > 0:
		condition.Status, condition.Reason = metav1.ConditionTrue, v1beta1.ReasonRemediating
		condition.Message = fmt.Sprintf("%d Nodes are unhealthy, and %d of their instances are being replaced", r.Failing, r.InFlight)
		var named []string
		for _, replacement := range r.Replace[:min(len(r.Replace), maxListedUnhealthy)] {
			named = append(named, replacementCause{replacement.Node, replacement.Problem}.describe(replacement.ID))
		}
		if len(named) > 0 {
			condition.Message += ": " + strings.Join(named, ", ")
		}
		if more := len(r.Replace) - len(named); more > 0 {
			condition.Message += fmt.Sprintf(" and %d more", more)
		}
	}
	return condition
}

// recordRemediation records which replacements begin, and why.
func (c *Controller) recordRemediation(pool *v1beta1.NstanceMachinePool, begin []newReplacement) {
	var wanted, unhealthy []string
	for _, b := range begin {
		if b.problem == "" {
			wanted = append(wanted, b.node)
		} else {
			unhealthy = append(unhealthy, b.describe(b.id))
		}
	}
	if len(wanted) > 0 {
		controller.Record(c.recorder, pool, reasonReplacing, "Replace",
			fmt.Sprintf("the instances of Nodes with the annotation %s are being replaced: %s", v1beta1.AnnotationRemediateInstance, strings.Join(wanted, ", ")))
	}
	if len(unhealthy) > 0 {
		controller.Record(c.recorder, pool, reasonReplacing, "Replace",
			"the instances of unhealthy Nodes are being replaced: "+strings.Join(unhealthy, ", "))
	}
}
