// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scaledown

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

const (
	groupName = "workers--a"
	protect   = `{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true","nstance.dev/scale-down-disabled":"workers--a"},"resourceVersion":"7","uid":"uid-c"}}`
	release   = `{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":null,"nstance.dev/scale-down-disabled":null},"resourceVersion":"7","uid":"uid-c"}}`
)

// harness has a pool of two that the autoscaler scales, whose shard replaces the instance a by c, and the
// Nodes of the instances a, b and c.
type harness struct {
	*controllertest.Harness
	controller  *Controller
	pool        *v1beta1.NstanceMachinePool
	machinePool *clusterv1.MachinePool
	cluster     *clusterv1.Cluster
	group       *v1beta1.NstanceShardGroup
	reported    shard.Group
	a, b, c     *corev1.Node
	// gone is true if the shard group no longer exists.
	gone bool
}

func nodeOf(instance string) *corev1.Node {
	node := newNode(map[string]string{})
	node.Name, node.UID, node.Labels = "node-"+instance, types.UID("uid-"+instance), map[string]string{}
	node.Spec.ProviderID = "kwok:///a/" + instance
	return node
}

func newHarness(t *testing.T, change func(*harness)) *harness {
	t.Helper()
	h := &harness{a: nodeOf("a"), b: nodeOf("b"), c: nodeOf("c"), cluster: controllertest.NewCluster()}
	h.pool = &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "workers", UID: "uid-workers"},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: []v1beta1.Identifier{"a"}},
		Status:     v1beta1.NstanceMachinePoolStatus{InfrastructureMachineKind: "NstanceMachine"},
	}
	h.machinePool = controllertest.NewMachinePool("workers", "workers")
	h.machinePool.Annotations = map[string]string{clusterv1.AutoscalerMinSizeAnnotation: "0", clusterv1.AutoscalerMaxSizeAnnotation: "9"}
	h.group = controllertest.NewShardGroup(h.pool, "a")
	h.group.Status.ProviderIDs = []string{"kwok:///a/a", "kwok:///a/b", "kwok:///a/c"}
	h.reported = newReported(2, "a:outdated b c").group
	h.Harness = controllertest.NewHarness(t, shardtest.New("a", "b"))
	change(h)
	objects := []runtime.Object{h.pool}
	if !h.gone {
		objects = append(objects, h.group)
	}
	for _, object := range objects {
		require.NoError(t, h.Tracker().Add(object))
	}
	h.Fake.SetGroup("a", h.reported)
	h.Put(h.Informers.MachinePools, h.machinePool)
	h.Put(h.Informers.Clusters, h.cluster)
	for _, node := range []*corev1.Node{h.a, h.b, h.c} {
		h.Put(h.Informers.Nodes, node)
		if list, err := h.KubeClient.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil &&
			!slices.ContainsFunc(list.Items, func(live corev1.Node) bool { return live.Name == node.Name }) {
			require.NoError(t, h.KubeClient.Tracker().Add(node.DeepCopy()))
		}
	}
	var err error
	h.controller, err = New(h.Dependencies)
	require.NoError(t, err)
	h.Show()
	return h
}

// protected marks a Node as the operator does.
func protected(node *corev1.Node) {
	node.Annotations = map[string]string{AnnotationDisabled: "true", v1beta1.AnnotationScaleDownDisabled: groupName}
}

// done ends the replacement.
func (h *harness) done() {
	h.reported.Instances, h.reported.DeletionOrder = h.reported.Instances[1:], h.reported.DeletionOrder[1:]
}

// live gives the API server another version of the Node c than the cache has.
func (h *harness) live(change func(*corev1.Node)) {
	node := h.c.DeepCopy()
	change(node)
	require.NoError(h.T, h.KubeClient.Tracker().Add(node))
}

func (h *harness) sync() (time.Duration, error) {
	return h.controller.sync(context.Background(), groupName)
}

// patches returns the patches of Nodes, each after the name of the Node.
func (h *harness) patches() []string {
	found := []string{}
	for _, action := range h.KubeClient.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok && patch.GetResource().Resource == "nodes" {
			found = append(found, patch.GetName()+" "+string(patch.GetPatch()))
		}
	}
	return found
}

func TestTheNodeOfAReplacementIsProtected(t *testing.T) {
	h := newHarness(t, func(*harness) {})
	after, err := h.sync()
	require.NoError(t, err)
	assert.Zero(t, after)
	assert.Equal(t, []string{"node-c " + protect}, h.patches())
}

func TestANodeIsReleased(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"after the replacement":            func(h *harness) { h.done() },
		"the autoscaler scales no longer":  func(h *harness) { h.machinePool.Annotations = nil },
		"only one of its annotations":      func(h *harness) { delete(h.machinePool.Annotations, clusterv1.AutoscalerMinSizeAnnotation) },
		"the instances have no Machines":   func(h *harness) { h.pool.Status.InfrastructureMachineKind = "" },
		"the pool is being deleted":        func(h *harness) { controllertest.Deleting(h.pool) },
		"the shard group is being deleted": func(h *harness) { controllertest.Deleting(h.group) },
		"without Machines, and the shard is lost": func(h *harness) {
			h.pool.Status.InfrastructureMachineKind = ""
			h.Fake.ByID["a"].Reachable = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(h *harness) { protected(h.c); change(h) })
			_, err := h.sync()
			require.NoError(t, err)
			assert.Equal(t, []string{"node-c " + release}, h.patches())
		})
	}
}

// What is missing, foreign or not clear changes nothing, whether the Node is to be protected or released.
func TestNodesThatStayAsTheyAre(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"the shard is not reachable":        func(h *harness) { h.Fake.ByID["a"].Reachable = false },
		"the groups are not complete":       func(h *harness) { h.Fake.ByID["a"].Synced = false },
		"the notices are not complete":      func(h *harness) { h.Fake.ByID["a"].Settled = false },
		"the shard does not list the group": func(h *harness) { h.reported.Key = "others" },
		"the server lists no instances":     func(h *harness) { h.reported.ListsInstances = false },
		"the pool is paused":                func(h *harness) { controllertest.Paused(h.pool) },
		"the MachinePool is paused":         func(h *harness) { h.machinePool.Annotations[clusterv1.PausedAnnotation] = "" },
		"the Cluster is paused":             func(h *harness) { controllertest.PausedCluster(h.cluster) },
		"no shard reports the Node":         func(h *harness) { h.group.Status.ProviderIDs = nil },
		"another shard has the Node":        func(h *harness) { h.c.Labels[v1beta1.LabelShard] = "b" },
		"no pool owns the shard group":      func(h *harness) { h.group.OwnerReferences = nil },
		"a former pool owns it":             func(h *harness) { h.group.OwnerReferences[0].UID = "uid-former" },
		"another shard reports it too": func(h *harness) {
			other := h.group.DeepCopy()
			other.Name, other.Spec.Shard = "workers--b", "b"
			require.NoError(h.T, h.Tracker().Add(other))
		},
		"a second Node": func(h *harness) {
			second := h.c.DeepCopy()
			second.Name = "second"
			h.Put(h.Informers.Nodes, second)
		},
		"the API server has another Node":     func(h *harness) { h.live(func(node *corev1.Node) { node.UID = "uid-2" }) },
		"the API server has it being deleted": func(h *harness) { h.live(func(node *corev1.Node) { node.DeletionTimestamp = ptr.To(metav1.Now()) }) },
	} {
		for what, before := range map[string]func(*harness){
			"to protect": func(*harness) {},
			"to release": func(h *harness) { protected(h.c); h.done() },
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				h := newHarness(t, func(h *harness) { before(h); change(h) })
				_, err := h.sync()
				require.NoError(t, err)
				assert.Empty(t, h.patches())
			})
		}
	}
}

// What a user has set is neither changed nor removed, also if the cache does not have it yet.
func TestTheAnnotationOfAUserStays(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"to protect":               func(h *harness) { h.c.Annotations[AnnotationDisabled] = "true" },
		"permitted":                func(h *harness) { h.c.Annotations[AnnotationDisabled] = "false" },
		"to release":               func(h *harness) { h.c.Annotations[AnnotationDisabled] = "true"; h.done() },
		"to protect, set just now": func(h *harness) { h.live(func(node *corev1.Node) { node.Annotations[AnnotationDisabled] = "true" }) },
		"an own mark is removed live": func(h *harness) {
			h.live(func(node *corev1.Node) { node.Annotations[AnnotationDisabled] = "true" })
			protected(h.c)
			h.done()
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

// A drain that a notice alone shows counts, and one for a scale-down does not.
func TestNoticesCount(t *testing.T) {
	for reason, want := range map[string][]string{"spot": {"node-c " + protect}, "scale-down": {}} {
		h := newHarness(t, func(h *harness) {
			h.reported = newReported(2, "a b c").group
			h.Fake.ByID["a"].Notices["a"] = shard.DeletionNotice{InstanceID: "a", Group: "workers", State: shard.Draining, Reason: reason}
		})
		_, err := h.sync()
		require.NoError(t, err)
		assert.Equal(t, want, h.patches(), reason)
	}
}

// While an instance is replaced, a Node that is protected stays protected although a newer one is.
func TestAProtectedNodeStaysProtected(t *testing.T) {
	h := newHarness(t, func(h *harness) { protected(h.b) })
	_, err := h.sync()
	require.NoError(t, err)
	assert.Equal(t, []string{"node-c " + protect}, h.patches())
}

// A Node that another shard may name is checked again: no event tells when the shard names it no longer.
func TestAForeignNodeIsCheckedAgain(t *testing.T) {
	h := newHarness(t, func(h *harness) { h.c.Labels[v1beta1.LabelShard] = "b" })
	after, err := h.sync()
	require.NoError(t, err)
	assert.Equal(t, controllers.ForeignRecheck, after)
}

func TestWhatEnqueuesShardGroups(t *testing.T) {
	h := newHarness(t, func(*harness) {})
	marked, moved, labeled, alive := h.c.DeepCopy(), h.c.DeepCopy(), h.c.DeepCopy(), h.c.DeepCopy()
	protected(marked)
	byUser, half := marked.DeepCopy(), marked.DeepCopy()
	delete(byUser.Annotations, v1beta1.AnnotationScaleDownDisabled)
	delete(half.Annotations, AnnotationDisabled)
	moved.Spec.ProviderID, labeled.Labels[v1beta1.LabelShard], alive.ResourceVersion, alive.Annotations["x"] = "kwok:///a/d", "a", "8", "y"
	plain, paused, former := h.pool.DeepCopy(), controllertest.Paused(h.pool.DeepCopy()), h.pool.DeepCopy()
	plain.Status.InfrastructureMachineKind, former.Spec.InstanceType = "", "m7i.large"
	silent, deletingGroup, later := h.group.DeepCopy(), controllertest.Deleting(h.group.DeepCopy()), h.group.DeepCopy()
	silent.Status.ProviderIDs, silent.ResourceVersion, deletingGroup.ResourceVersion, later.ResourceVersion = nil, "1", "1", "1"
	unscaled, scaled := h.machinePool.DeepCopy(), h.machinePool.DeepCopy()
	unscaled.Annotations, scaled.Spec.Replicas = nil, ptr.To[int32](3)
	pausedCluster := controllertest.PausedCluster(h.cluster.DeepCopy())
	h.Fake.ByID["a"].Notices["a"] = shard.DeletionNotice{InstanceID: "a", Group: "workers"}
	for name, test := range map[string]struct {
		change func()
		want   string
	}{
		"the shard reports instances":      {func() { h.Fake.NotifyGroup("a", "workers") }, "1s"},
		"another group":                    {func() { h.Fake.NotifyGroup("a", "others") }, ""},
		"a notice":                         {func() { h.Fake.NotifyInstance("a", "a") }, "1s"},
		"no notice any more":               {func() { h.Fake.NotifyInstance("a", "b") }, ""},
		"the shard is connected":           {func() { h.Fake.NotifyShard("a") }, "1s"},
		"another shard":                    {func() { h.Fake.NotifyShard("b") }, ""},
		"a new Node":                       {func() { h.controller.nodeChanged(nil, h.c) }, "1s"},
		"it is marked":                     {func() { h.controller.nodeChanged(h.c, marked) }, "1s"},
		"a user keeps the mark":            {func() { h.controller.nodeChanged(marked, byUser) }, "1s"},
		"a user removes it":                {func() { h.controller.nodeChanged(marked, half) }, "1s"},
		"it has a provider id":             {func() { h.controller.nodeChanged(moved, h.c) }, "1s"},
		"it has a shard":                   {func() { h.controller.nodeChanged(h.c, labeled) }, "1s"},
		"its kubelet reports":              {func() { h.controller.nodeChanged(h.c, alive) }, ""},
		"the Node is gone":                 {func() { h.controller.nodeChanged(h.c, nil) }, ""},
		"the pool has Machines":            {func() { h.controller.poolChanged(plain, h.pool) }, "1s"},
		"the pool is not paused":           {func() { h.controller.poolChanged(paused, h.pool) }, "1s"},
		"another setting":                  {func() { h.controller.poolChanged(former, h.pool) }, ""},
		"the shard group has instances":    {func() { h.controller.shardGroupChanged(silent, h.group) }, "1s"},
		"the shard group is being deleted": {func() { h.controller.shardGroupChanged(deletingGroup, h.group) }, "1s"},
		"the shard group has a condition":  {func() { h.controller.shardGroupChanged(later, h.group) }, ""},
		"a resync":                         {func() { h.controller.shardGroupChanged(h.group, h.group) }, "1s"},
		"the autoscaler scales":            {func() { h.controller.machinePoolChanged(unscaled, h.machinePool) }, "1s"},
		"the MachinePool is deleted":       {func() { h.controller.machinePoolChanged(h.machinePool, nil) }, "1s"},
		"the autoscaler has scaled":        {func() { h.controller.machinePoolChanged(h.machinePool, scaled) }, ""},
		"the Cluster is not paused":        {func() { h.controller.clusterChanged(pausedCluster, h.cluster) }, "0s"},
		"the Cluster is as it was":         {func() { h.controller.clusterChanged(h.cluster, h.cluster) }, ""},
	} {
		var want []string
		if test.want != "" {
			want = []string{groupName + " at " + test.want}
		}
		assert.Equal(t, want, controllertest.Enqueued(t, &h.controller.queue, test.change), name)
	}
	assert.Equal(t, []string{groupName}, h.controller.keys())
}

// Other pools cost nothing, unless they have protected Nodes.
func TestShardGroupsOfPoolsWithoutMachines(t *testing.T) {
	for want, change := range map[string]func(*harness){"": func(*harness) {}, groupName + " at 1s": func(h *harness) { protected(h.c) }} {
		h := newHarness(t, func(h *harness) {
			h.pool.Status.InfrastructureMachineKind = ""
			change(h)
		})
		enqueued := controllertest.Enqueued(t, &h.controller.queue, func() {
			h.Fake.NotifyGroup("a", "workers")
			h.Fake.NotifyInstance("a", "b")
			h.controller.nodeChanged(nil, h.c)
			h.controller.poolChanged(nil, h.pool)
		})
		if want == "" {
			assert.Empty(t, enqueued)
			continue
		}
		assert.Equal(t, []string{want}, enqueued)
	}
}

// A pool that retains its instances deletes its shard groups at once: the Nodes must not stay protected for
// ever. The last version of the shard group names them.
func TestNodesOfADeletedShardGroupAreReleased(t *testing.T) {
	h := newHarness(t, func(h *harness) { protected(h.c); h.gone = true })
	_, err := h.sync()
	require.NoError(t, err)
	assert.Equal(t, []string{"node-c " + release}, h.patches())
	assert.Equal(t, []string{groupName + " at 0s"}, controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.shardGroupChanged(h.group, nil) }))
}

// A shard group that leaves no protected Nodes costs nothing.
func TestADeletedShardGroupWithoutProtectedNodes(t *testing.T) {
	h := newHarness(t, func(*harness) {})
	assert.Empty(t, controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.shardGroupChanged(h.group, nil) }))
}
