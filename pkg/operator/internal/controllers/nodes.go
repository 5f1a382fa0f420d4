// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	// byProviderID indexes Nodes by the key of their provider id.
	byProviderID = "providerID"
	// byReported indexes NstanceShardGroups and NstanceMachines by the keys of the provider ids
	// that their shard has reported.
	byReported = "reportedProviderID"
)

// ForeignRecheck is the time between two checks of a Node that a shard may not name. A change of
// what other shards report enqueues nothing.
const ForeignRecheck = 30 * time.Second

// Nodes finds the Nodes of instances in the caches of informers. A shard server is not trusted
// with the Nodes of others (SECURITY.md#trust-model), so the controllers that change Nodes, or
// let Cluster API change them, call OfInstance or Foreign before.
type Nodes struct {
	nodes, shardGroups, nstanceMachines cache.Indexer
	// shards are the shards whose reports count. The objects of a shard that was removed or
	// renamed are left for a while.
	shards shard.Set
}

// NewNodes adds the indexes of Nodes to the informers, unless another controller has added them.
func NewNodes(d *Dependencies) (*Nodes, error) {
	shardGroups := d.Informers.Nstance.NstanceShardGroups().Informer()
	nstanceMachines := d.Informers.Nstance.NstanceMachines().Informer()
	if err := controller.IndexOnce(d.Informers.Nodes, byProviderID, indexByProviderID); err != nil {
		return nil, fmt.Errorf("index Nodes by provider id: %w", err)
	}
	for _, informer := range []cache.SharedIndexInformer{shardGroups, nstanceMachines} {
		if err := controller.IndexOnce(informer, byReported, indexByReported); err != nil {
			return nil, fmt.Errorf("index the reports of shards by provider id: %w", err)
		}
	}
	return &Nodes{
		nodes:           d.Informers.Nodes.GetIndexer(),
		shardGroups:     shardGroups.GetIndexer(),
		nstanceMachines: nstanceMachines.GetIndexer(),
		shards:          d.NamedShards,
	}, nil
}

// WithProviderID returns the Nodes whose provider id names the same machine as id. It does not
// check whether the Nodes belong to the shard that has reported the id.
func (n *Nodes) WithProviderID(id string) []*corev1.Node {
	var nodes []*corev1.Node
	for _, node := range controller.Indexed[corev1.Node](n.nodes, byProviderID, providerid.Key(id)) {
		if providerid.Match(id, node.Spec.ProviderID) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// OfInstance returns the Nodes with the provider id of an instance that a shard has reported, and
// why the shard may not name the Node, "" if it may (docs/drains.md#whose-node-it-is). Without a
// Node the other reports of the provider id are checked. With several Nodes nothing is checked:
// the caller changes none of them.
func (n *Nodes) OfInstance(shardID, providerID string) (nodes []*corev1.Node, foreign string) {
	nodes = n.WithProviderID(providerID)
	switch len(nodes) {
	case 0:
		return nil, n.reportedByOthers(shardID, providerID)
	case 1:
		return nodes, n.Foreign(shardID, nodes[0])
	}
	return nodes, ""
}

// Foreign returns why a Node does not belong to a shard, "" if it may belong to it. The label
// LabelShard of the Node decides, which the kubelet or an administrator has set; a shard cannot
// change it. Without the label no other shard may report the provider id of the Node. A label of a
// shard that is not configured does not decide either: a server that does not name its shard may
// have another id than the configuration of the operator.
func (n *Nodes) Foreign(shardID string, node *corev1.Node) string {
	label, labeled := node.Labels[v1beta1.LabelShard]
	switch {
	case !labeled, label != "" && !n.shards.Has(label):
		return n.reportedByOthers(shardID, node.Spec.ProviderID)
	case label != shardID:
		return fmt.Sprintf("shard %s reports the provider id %q of Node %s, which has the label %s=%s",
			shardID, node.Spec.ProviderID, node.Name, v1beta1.LabelShard, label)
	}
	return ""
}

// ShardGroupsWith returns the shard groups that may have reported an instance with a provider id.
func (n *Nodes) ShardGroupsWith(providerID string) []*v1beta1.NstanceShardGroup {
	return controller.Indexed[v1beta1.NstanceShardGroup](n.shardGroups, byReported, providerid.Key(providerID))
}

// ShardGroupOf returns the shard group whose instance has a Node, nil if that is not certain: no shard group
// with a pool reports the provider id, or those of several pools do, or several Nodes have it. foreign
// reports that the answer may change without an event: a shard which may not name the Node reports it
// (ForeignRecheck).
func (n *Nodes) ShardGroupOf(node *corev1.Node) (found *v1beta1.NstanceShardGroup, foreign bool) {
	id := node.Spec.ProviderID
	if providerid.Key(id) == "" || len(n.WithProviderID(id)) != 1 {
		return nil, false
	}
	for _, group := range n.ShardGroupsWith(id) {
		pool := PoolOwning(group)
		if pool == nil || !slices.ContainsFunc(group.Status.ProviderIDs, func(reported string) bool { return providerid.Match(reported, id) }) {
			continue
		}
		if n.Foreign(string(group.Spec.Shard), node) != "" {
			foreign = true
			continue
		}
		if found != nil && PoolOwning(found).Name != pool.Name {
			return nil, true
		}
		found = group
	}
	if found == nil {
		return nil, foreign
	}
	return found, false
}

// reportedByOthers returns which other shards report a provider id, "" if none does.
func (n *Nodes) reportedByOthers(shardID, providerID string) string {
	key := providerid.Key(providerID)
	if key == "" {
		return ""
	}
	others := sets.New[string]()
	for _, group := range n.ShardGroupsWith(providerID) {
		// The list of the shard itself is not read: it may have thousands of ids, each of which is
		// looked up.
		if string(group.Spec.Shard) != shardID &&
			slices.ContainsFunc(group.Status.ProviderIDs, func(id string) bool { return providerid.Match(id, providerID) }) {
			others.Insert(string(group.Spec.Shard))
		}
	}
	for _, nstanceMachine := range controller.Indexed[v1beta1.NstanceMachine](n.nstanceMachines, byReported, key) {
		if providerid.Match(nstanceMachine.Status.ProviderID, providerID) {
			others.Insert(nstanceMachine.Status.Shard)
		}
	}
	others.Delete(shardID)
	reporting := slices.DeleteFunc(sets.List(others), func(id string) bool { return !n.shards.Has(id) })
	if len(reporting) == 0 {
		return ""
	}
	return fmt.Sprintf("shard %s reports the provider id %q, and so does shard %s", shardID, providerID, strings.Join(reporting, ", "))
}

// ReadNode returns a cached Node as it is on the API server, nil if it no longer exists, is being deleted, or
// has another provider id. The operator may list Nodes, and may not get them.
func ReadNode(ctx context.Context, client kubernetes.Interface, cached *corev1.Node) (*corev1.Node, error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, cached.Name).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("read Node %s: %w", cached.Name, err)
	}
	at := slices.IndexFunc(list.Items, func(node corev1.Node) bool {
		return node.Name == cached.Name && node.UID == cached.UID && node.Spec.ProviderID == cached.Spec.ProviderID && node.DeletionTimestamp.IsZero()
	})
	if at < 0 {
		return nil, nil
	}
	return &list.Items[at], nil
}

// ReadyCondition returns the condition Ready of a Node, the zero value if it is not set.
func ReadyCondition(node *corev1.Node) corev1.NodeCondition {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

func indexByProviderID(obj any) ([]string, error) {
	node, ok := obj.(*corev1.Node)
	if !ok || providerid.Key(node.Spec.ProviderID) == "" {
		return nil, nil
	}
	return []string{providerid.Key(node.Spec.ProviderID)}, nil
}

func indexByReported(obj any) ([]string, error) {
	var ids []string
	switch object := obj.(type) {
	case *v1beta1.NstanceShardGroup:
		ids = object.Status.ProviderIDs
	case *v1beta1.NstanceMachine:
		if object.Status.ProviderID == "" || meta.IsStatusConditionTrue(object.Status.Conditions, v1beta1.ConditionServerDeleted) {
			return nil, nil
		}
		ids = []string{object.Status.ProviderID}
	}
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = providerid.Key(id)
	}
	return keys, nil
}
