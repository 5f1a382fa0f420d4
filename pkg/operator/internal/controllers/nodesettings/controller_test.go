// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nodesettings

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

const providerID = "kwok:///a/knd1"

// harness has a pool that wants the label b=2, a shard group that reports an instance, and its Node.
type harness struct {
	*controllertest.Harness
	controller *Controller
	pool       *v1beta1.NstanceMachinePool
	group      *v1beta1.NstanceShardGroup
	node       *corev1.Node
}

func newHarness(t *testing.T, change func(*harness)) *harness {
	t.Helper()
	h := &harness{node: newNode("", []string{"a=1"})}
	h.node.Spec.ProviderID = providerID
	h.pool = &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "workers", UID: "uid-workers"},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: []v1beta1.Identifier{"a"}},
	}
	h.pool.Spec.Node = ptr.To(newSettings([]string{"b=2"}))
	h.group = controllertest.NewShardGroup(h.pool, "a")
	h.group.Status.ProviderIDs = []string{providerID}
	h.Harness = controllertest.NewHarness(t, shardtest.New("a", "b"))
	change(h)
	for _, object := range []runtime.Object{h.pool, h.group} {
		require.NoError(t, h.Tracker().Add(object))
	}
	h.Put(h.Informers.Nodes, h.node)
	if list, err := h.KubeClient.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil && len(list.Items) == 0 {
		require.NoError(t, h.KubeClient.Tracker().Add(h.node.DeepCopy()))
	}
	var err error
	h.controller, err = New(h.Dependencies)
	require.NoError(t, err)
	h.Show()
	return h
}

func (h *harness) sync() (time.Duration, error) {
	return h.controller.sync(context.Background(), "worker-1")
}

// patches returns the patches of Nodes.
func (h *harness) patches() []string {
	var found []string
	for _, action := range h.KubeClient.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok && patch.GetResource().Resource == "nodes" {
			found = append(found, string(patch.GetPatch()))
		}
	}
	return found
}

func TestLabelsAreSetOnTheNodesOfAPool(t *testing.T) {
	h := newHarness(t, func(*harness) {})
	after, err := h.sync()
	require.NoError(t, err)
	assert.Zero(t, after)
	assert.Equal(t, []string{
		`{"metadata":{"annotations":{"nstance.dev/node-settings":"{\"labels\":[\"b\"]}"},"labels":{"b":"2"},"resourceVersion":"7","uid":"uid-1"}}`,
	}, h.patches())
	h.ExpectSeries("nstance_operator_node_settings_written_total 1")
}

func TestNodesThatStayAsTheyAre(t *testing.T) {
	other := func(h *harness, change func(*v1beta1.NstanceShardGroup)) {
		group := h.group.DeepCopy()
		group.Name, group.Spec.Shard = "workers--b", "b"
		change(group)
		require.NoError(h.T, h.Tracker().Add(group))
	}
	for name, change := range map[string]func(*harness){
		"no provider id":             func(h *harness) { h.node.Spec.ProviderID = "" },
		"no shard reports it":        func(h *harness) { h.group.Status.ProviderIDs = nil },
		"another shard reports it":   func(h *harness) { other(h, func(*v1beta1.NstanceShardGroup) {}) },
		"another shard has the Node": func(h *harness) { h.node.Labels[v1beta1.LabelShard] = "b" },
		"a second Node": func(h *harness) {
			second := h.node.DeepCopy()
			second.Name = "worker-2"
			h.Put(h.Informers.Nodes, second)
		},
		"the pool wants nothing":          func(h *harness) { h.pool.Spec.Node = nil },
		"the pool is being deleted":       func(h *harness) { h.pool.DeletionTimestamp, h.pool.Finalizers = ptr.To(metav1.Now()), []string{"f"} },
		"the pool is paused":              func(h *harness) { h.pool.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} },
		"the API server has another Node": func(h *harness) { h.live(func(node *corev1.Node) { node.UID = "uid-2" }) },
		"the API server has the settings": func(h *harness) {
			h.live(func(node *corev1.Node) {
				*node = *newNode(`{"labels":["b"]}`, []string{"b=2"})
				node.Spec.ProviderID = providerID
			})
		},
		"the API server has it being deleted": func(h *harness) { h.live(func(node *corev1.Node) { node.DeletionTimestamp = ptr.To(metav1.Now()) }) },
		"the Cluster is paused": func(h *harness) {
			h.Put(h.Informers.Clusters, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: h.ClusterName}, Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, change)
			_, err := h.sync()
			require.NoError(t, err)
			assert.Empty(t, h.patches())
		})
	}
}

// live gives the API server another version of the Node than the cache has.
func (h *harness) live(change func(*corev1.Node)) {
	node := h.node.DeepCopy()
	change(node)
	require.NoError(h.T, h.KubeClient.Tracker().Add(node))
}

// A Node that another shard may name is checked again: no event tells when the shard names it no longer.
func TestAForeignNodeIsCheckedAgain(t *testing.T) {
	h := newHarness(t, func(h *harness) { h.node.Labels[v1beta1.LabelShard] = "b" })
	after, err := h.sync()
	require.NoError(t, err)
	assert.Equal(t, controllers.ForeignRecheck, after)
}

func TestARejectionIsAWarning(t *testing.T) {
	h := newHarness(t, func(*harness) {})
	h.KubeClient.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "worker-1", nil)
	})
	_, err := h.sync()
	require.Error(t, err)
	h.ExpectEvents(`Warning NodeSettingsRejected the API server rejects spec.node for Node worker-1: Node "worker-1" is invalid`)
}

func TestWhatEnqueuesNodes(t *testing.T) {
	h := newHarness(t, func(*harness) {})
	version := func(node *corev1.Node) *corev1.Node {
		node = node.DeepCopy()
		node.ResourceVersion = "8"
		return node
	}
	labeled, tainted := version(h.node), version(h.node)
	labeled.Labels["b"] = "3"
	tainted.Spec.Taints = []corev1.Taint{newTaint("x=:NoSchedule")}
	other, paused := h.pool.DeepCopy(), h.pool.DeepCopy()
	other.Spec.Node = ptr.To(newSettings([]string{"b=3"}))
	paused.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	silent, foreign := h.group.DeepCopy(), h.group.DeepCopy()
	silent.Status.ProviderIDs, foreign.OwnerReferences = nil, nil
	cluster := &clusterv1.Cluster{}
	pausedCluster := &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)}}
	for name, test := range map[string]struct {
		change func()
		want   bool
	}{
		"a new Node":                 {func() { h.controller.nodeChanged(nil, h.node) }, true},
		"a resync":                   {func() { h.controller.nodeChanged(h.node, h.node) }, true},
		"another label":              {func() { h.controller.nodeChanged(h.node, labeled) }, true},
		"another taint":              {func() { h.controller.nodeChanged(h.node, tainted) }, true},
		"its kubelet reports":        {func() { h.controller.nodeChanged(h.node, version(h.node)) }, false},
		"the Node is gone":           {func() { h.controller.nodeChanged(h.node, nil) }, false},
		"other settings":             {func() { h.controller.poolChanged(h.pool, other) }, true},
		"the pool is not paused":     {func() { h.controller.poolChanged(paused, h.pool) }, true},
		"the same settings":          {func() { h.controller.poolChanged(h.pool, h.pool.DeepCopy()) }, false},
		"the instance is reported":   {func() { h.controller.shardGroupChanged(silent, h.group) }, true},
		"it was reported":            {func() { h.controller.shardGroupChanged(h.group, h.group.DeepCopy()) }, false},
		"the pool adopts its group":  {func() { h.controller.shardGroupChanged(foreign, h.group) }, true},
		"the Cluster is not paused":  {func() { h.controller.clusterChanged(pausedCluster, cluster) }, true},
		"the Cluster is as it was":   {func() { h.controller.clusterChanged(cluster, cluster) }, false},
		"the shard group is deleted": {func() { h.controller.shardGroupChanged(h.group, nil) }, false},
	} {
		enqueued := controllertest.Enqueued(t, &h.controller.queue, test.change)
		assert.Equal(t, test.want, slices.Equal(enqueued, []string{"worker-1 at 0s"}), "%s: %v", name, enqueued)
	}
	assert.Equal(t, []string{"worker-1"}, h.controller.keys())
}

// A pool without settings costs nothing for its Nodes, except those on which something is set or that wait.
func TestNodesOfPoolsWithoutSettings(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*harness)
		want   []string
	}{
		"another Node":         {func(*harness) {}, nil},
		"a Node that has some": {func(h *harness) { h.node = newNode(`{"labels":["b"]}`, nil) }, []string{"worker-1"}},
		"a Node that waits":    {func(h *harness) { h.node = newNode("", nil, v1beta1.TaintUninitialized+"=:NoSchedule") }, []string{"worker-1"}},
		"a pool that has some": {func(h *harness) { h.pool.Spec.Node = ptr.To(newSettings([]string{"b=2"})) }, []string{"worker-1"}},
		"a pool of another Node": {func(h *harness) {
			h.pool.Spec.Node = ptr.To(newSettings([]string{"b=2"}))
			h.group.Status.ProviderIDs = nil
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(h *harness) {
				h.pool.Spec.Node = nil
				test.change(h)
				h.node.Spec.ProviderID = providerID
			})
			assert.ElementsMatch(t, test.want, h.controller.keys())
			enqueued := controllertest.Enqueued(t, &h.controller.queue, func() {
				h.controller.nodeChanged(nil, h.node)
				h.controller.shardGroupChanged(nil, h.group)
			})
			assert.Len(t, enqueued, len(test.want))
		})
	}
}
