// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
)

// This file finds the instances that users want to be replaced: their Nodes have an annotation.

// reasonReplacing is the reason of the event for instances whose replacement begins.
const reasonReplacing = "ReplacingInstances"

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
}

// remediated returns the names of the Nodes of the instances on a shard that are to be replaced, by
// the ids of the instances, nil while the instances are not known. A Node that the shard may not name
// does not count, nor does one of several Nodes with a provider id.
func (c *Controller) remediated(state *shardState, nodes map[string][]*corev1.Node) map[string]string {
	if !state.configured || !state.synced || !state.reachable || state.reported == nil || state.reported.Progress == nil {
		return nil
	}
	wanted := map[string]string{}
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
				wanted[instance.ID] = node.Name
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

// remediates returns the names of the Nodes whose instances a decision names for the first time.
func remediates(observed observation, d decision) (nodes []string) {
	for _, want := range d.apply {
		at := slices.IndexFunc(observed.shards, func(s shardState) bool { return s.id == string(want.spec.Shard) })
		if at < 0 {
			continue
		}
		state := &observed.shards[at]
		for _, id := range want.spec.Replace {
			if state.group == nil || !slices.Contains(state.group.Spec.Replace, id) {
				nodes = append(nodes, state.remediated[id])
			}
		}
	}
	return nodes
}

// stillWanted reports whether all of these Nodes have the annotation on the API server too: a user may
// have taken it back since the cache was filled.
func (c *Controller) stillWanted(ctx context.Context, names []string) (bool, error) {
	for _, name := range names {
		list, err := c.workload.CoreV1().Nodes().List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		})
		if err != nil {
			return false, fmt.Errorf("read Node %s, whose instance is to be replaced: %w", name, err)
		}
		if !slices.ContainsFunc(list.Items, func(node corev1.Node) bool { return node.Name == name && wantsRemediation(&node) }) {
			return false, nil
		}
	}
	return true, nil
}

// recordRemediation records for which Nodes the replacement of the instances begins.
func (c *Controller) recordRemediation(pool *v1beta1.NstanceMachinePool, nodes []string) {
	if len(nodes) > 0 {
		controller.Record(c.recorder, pool, reasonReplacing, "Replace",
			fmt.Sprintf("the instances of Nodes with the annotation %s are being replaced: %s", v1beta1.AnnotationRemediateInstance, strings.Join(nodes, ", ")))
	}
}
