// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package orphannode

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

const (
	instanceID = "knd06bgm7733st2576nx5jht4ecjw"
	providerID = "qemu:///us-west-2a/" + instanceID
)

// lister counts the lists of groups, of all shards together.
type lister struct {
	shardtest.Groups
	requested, complete uint64
}

func (l *lister) Relist(string) uint64 {
	l.requested++
	return l.complete
}

func (l *lister) ListedSince(_ string, mark uint64) bool { return l.complete > mark }

// harness has a Node, of an instance that shard b has terminated, whose kubelet does not report.
type harness struct {
	*controllertest.Harness
	controller *Controller
	lists      *lister
	node       *corev1.Node
	log        *audittest.Log
}

// newHarness returns a harness. change changes the Node, and what the shards and the API server
// have, before the controller is created.
func newHarness(t *testing.T, change func(*harness)) *harness {
	t.Helper()
	h := &harness{Harness: controllertest.NewHarness(t, shardtest.New("a", "b")), log: audittest.NewLog()}
	h.lists = &lister{Groups: h.Fake.Groups()}
	h.Groups = h.lists
	h.Fake.ByID["b"].Instances[instanceID] = shard.Instance{ID: instanceID, State: shard.InstanceTerminated, ProviderID: providerID}
	h.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "late", UID: "late-1", ResourceVersion: "7"}}
	h.node.Spec.ProviderID = providerID
	h.ready(h.node, corev1.ConditionUnknown, unknownTimeout)
	change(h)
	h.Put(h.Informers.Nodes, h.node)
	if _, err := h.KubeClient.CoreV1().Nodes().Get(t.Context(), "late", metav1.GetOptions{}); apierrors.IsNotFound(err) {
		require.NoError(t, h.KubeClient.Tracker().Add(h.node.DeepCopy()))
	}
	var err error
	h.controller, err = New(h.Dependencies)
	require.NoError(t, err)
	h.SyncKey = func() (time.Duration, error) { return h.controller.sync(h.log.Context(context.Background()), "late") }
	return h
}

// ready sets the condition Ready of a Node, and since when.
func (h *harness) ready(node *corev1.Node, value corev1.ConditionStatus, since time.Duration) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: value, LastTransitionTime: metav1.NewTime(h.Clock.Now().Add(-since))}}
}

// deletions returns the preconditions of the deletions of Nodes.
func (h *harness) deletions() []metav1.Preconditions {
	var found []metav1.Preconditions
	for _, action := range h.KubeClient.Actions() {
		if deletion, ok := action.(clienttesting.DeleteActionImpl); ok && deletion.GetResource().Resource == "nodes" {
			found = append(found, *deletion.DeleteOptions.Preconditions)
		}
	}
	return found
}

// syncWithLists syncs the Node so often that it is deleted if nothing prevents it. A list is
// complete before each sync.
func (h *harness) syncWithLists() {
	h.T.Helper()
	for range 3 * (confirmations + 1) {
		h.lists.complete++
		_, _, err := h.Sync()
		require.NoError(h.T, err)
	}
}

func TestNodeOfATerminatedInstanceIsDeletedAfterTwoLists(t *testing.T) {
	h := newHarness(t, func(*harness) {})
	get := "get " + instanceID + " on b"
	assert.Equal(t, listPeriod, h.Expect("get "+instanceID+" on a", get))
	for list := range uint64(2) {
		assert.Equal(t, listPeriod, h.Expect(), "a list of the groups is awaited")
		assert.Equal(t, list+1, h.lists.requested, "lists")
		assert.Empty(t, h.deletions(), "after %d lists", list)
		h.lists.complete++
		h.Expect(get)
	}
	assert.Equal(t, []metav1.Preconditions{{UID: ptr.To(types.UID("late-1")), ResourceVersion: ptr.To("7")}}, h.deletions())
	h.ExpectEvents("Normal DeletingNode its instance " + instanceID + " is terminated, as shard b has confirmed")
	h.ExpectSeries("nstance_operator_orphan_nodes_deleted_total 1")
	h.log.Expect(t, "Audit: delete object kind=Node name=late writer=nstance-operator reason=its instance "+instanceID+" is terminated, as shard b has confirmed")
	h.controller.nodeChanged(h.node, nil)
	assert.Empty(t, h.controller.proofs)
}

func TestNodesThatStay(t *testing.T) {
	setInstance := func(h *harness, change func(*shard.Instance)) {
		instance := h.Fake.ByID["b"].Instances[instanceID]
		change(&instance)
		h.Fake.ByID["b"].Instances[instanceID] = instance
	}
	live := func(h *harness, change func(*corev1.Node)) {
		node := h.node.DeepCopy()
		change(node)
		require.NoError(h.T, h.KubeClient.Tracker().Add(node))
	}
	machine := func(h *harness, change func(*clusterv1.Machine)) {
		object := &clusterv1.Machine{TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
			ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: "m"}}
		change(object)
		h.CAPI.Has(h.T, object)
	}
	ours := func(h *harness, object runtime.Object) { require.NoError(h.T, h.Tracker().Add(object)) }
	meta := metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "o"}

	for name, change := range map[string]func(*harness){
		"Ready":                              func(h *harness) { h.ready(h.node, corev1.ConditionTrue, time.Hour) },
		"not ready, and its kubelet reports": func(h *harness) { h.ready(h.node, corev1.ConditionFalse, time.Hour) },
		"without conditions":                 func(h *harness) { h.node.Status.Conditions = nil },
		"its kubelet was lost just now":      func(h *harness) { h.ready(h.node, corev1.ConditionUnknown, unknownTimeout-time.Second) },
		"without a provider id":              func(h *harness) { h.node.Spec.ProviderID = "" },
		"a provider id of AWS":               func(h *harness) { h.node.Spec.ProviderID = "aws:///us-west-2a/i-0123456789abcdef0" },
		"a name of another project":          func(h *harness) { h.node.Spec.ProviderID = "qemu:///us-west-2a/" + instanceID + "0" },
		"an id without a provider":           func(h *harness) { h.node.Spec.ProviderID = instanceID },
		"an instance in another zone":        func(h *harness) { h.node.Spec.ProviderID = "qemu:///us-west-2b/" + instanceID },
		"an instance of another provider":    func(h *harness) { h.node.Spec.ProviderID = "docker:///us-west-2a/" + instanceID },
		"an instance that no shard knows":    func(h *harness) { delete(h.Fake.ByID["b"].Instances, instanceID) },
		"an instance of another tenant":      func(h *harness) { h.Fake.Fail["get"] = status.Error(codes.PermissionDenied, "another tenant's") },
		"a shard that does not answer":       func(h *harness) { h.Fake.Fail["get"] = shardtest.Unavailable },
		"a running instance":                 func(h *harness) { setInstance(h, func(i *shard.Instance) { i.State = shard.InstanceRunning }) },
		"a stopped instance":                 func(h *harness) { setInstance(h, func(i *shard.Instance) { i.State = shard.InstanceStopped }) },
		"an instance that is being deleted":  func(h *harness) { setInstance(h, func(i *shard.Instance) { i.State = shard.InstanceTerminating }) },
		"a reply about another instance":     func(h *harness) { setInstance(h, func(i *shard.Instance) { i.ID = "knd1" }) },
		"a shard that is not connected":      func(h *harness) { h.Fake.ByID["b"].Reachable = false },
		"a shard whose groups are not known": func(h *harness) { h.Fake.ByID["b"].Synced = false },
		"a shard that is not configured":     func(h *harness) { delete(h.Fake.ByID, "b") },
		"a group that has the instance": func(h *harness) {
			h.Fake.SetGroup("b", shard.Group{Key: "w", Instances: []shard.Instance{{ID: instanceID}}})
		},
		"a group that has the provider id":   func(h *harness) { h.Fake.SetGroup("b", shard.Group{Key: "w", ProviderIDs: []string{providerID}}) },
		"a Machine that has the Node":        func(h *harness) { machine(h, func(m *clusterv1.Machine) { m.Status.NodeRef.Name = "late" }) },
		"a Machine that has the provider id": func(h *harness) { machine(h, func(m *clusterv1.Machine) { m.Spec.ProviderID = providerID }) },
		"a pool that has the provider id": func(h *harness) {
			ours(h, &v1beta1.NstanceMachinePool{ObjectMeta: meta, Spec: v1beta1.NstanceMachinePoolSpec{ProviderIDList: []string{providerID}}})
		},
		"an NstanceMachine of the instance": func(h *harness) {
			ours(h, &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: meta.Namespace, Name: "o", Annotations: map[string]string{v1beta1.AnnotationInstanceID: instanceID}}})
		},
		"an NstanceMachine with the id": func(h *harness) {
			ours(h, &v1beta1.NstanceMachine{ObjectMeta: meta, Spec: v1beta1.NstanceMachineSpec{ProviderID: providerID}})
		},
		"the label of another shard": func(h *harness) { h.node.Labels = map[string]string{v1beta1.LabelShard: "a"} },
		"the API server has it with the label of another shard": func(h *harness) {
			live(h, func(node *corev1.Node) { node.Labels = map[string]string{v1beta1.LabelShard: "a"} })
		},
		"a shard group of another shard has the provider id": func(h *harness) {
			ours(h, &v1beta1.NstanceShardGroup{ObjectMeta: meta,
				Spec: v1beta1.NstanceShardGroupSpec{Shard: "a"}, Status: v1beta1.NstanceShardGroupStatus{ProviderIDs: []string{providerID}}})
		},
		"the API server has another Node":     func(h *harness) { live(h, func(node *corev1.Node) { node.UID = "late-2" }) },
		"the API server has it Ready":         func(h *harness) { live(h, func(node *corev1.Node) { h.ready(node, corev1.ConditionTrue, 0) }) },
		"the API server has it being deleted": func(h *harness) { live(h, func(node *corev1.Node) { node.DeletionTimestamp = ptr.To(metav1.Now()) }) },
		"a paused Cluster": func(h *harness) {
			h.Put(h.Informers.Clusters, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: h.ClusterName}, Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, change)
			h.syncWithLists()
			assert.Empty(t, h.deletions())
			h.ExpectEvents()
		})
	}
}

// The provider had not reported the provider id when the instance was deleted.
func TestRecordWithoutAProviderIDProvesTheDeletion(t *testing.T) {
	h := newHarness(t, func(h *harness) {
		h.Fake.ByID["b"].Instances[instanceID] = shard.Instance{ID: instanceID, State: shard.InstanceTerminated}
	})
	h.syncWithLists()
	assert.Len(t, h.deletions(), 1)
}

// After the connection was lost, another process may answer.
func TestConfirmationsOfALostConnectionDoNotCount(t *testing.T) {
	h := newHarness(t, func(*harness) {})
	for range confirmations {
		_, _, err := h.Sync()
		require.NoError(t, err)
		h.lists.complete++
	}
	h.Fake.NotifyShard("b")
	h.Expect("get "+instanceID+" on a", "get "+instanceID+" on b")
	h.lists.complete++
	h.Expect("get " + instanceID + " on b")
	assert.Empty(t, h.deletions(), "one list since then")
	h.lists.complete++
	h.Expect("get " + instanceID + " on b")
	assert.Len(t, h.deletions(), 1)
}

func TestDeletionThatFailsIsRepeatedLater(t *testing.T) {
	nodes := corev1.Resource("nodes")
	for name, test := range map[string]struct {
		reply error
		later time.Duration
	}{
		// The node controller of Kubernetes writes taints, for example.
		"the Node has changed":   {apierrors.NewConflict(nodes, "late", nil), listPeriod},
		"the Node was deleted":   {apierrors.NewNotFound(nodes, "late"), recheckPeriod},
		"the right is missing":   {apierrors.NewForbidden(nodes, "late", nil), recheckPeriod},
		"the API server is slow": {apierrors.NewTimeoutError("etcd", 1), recheckPeriod},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, func(*harness) {})
			h.KubeClient.PrependReactor("delete", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.reply })
			var requeue time.Duration
			for range confirmations + 1 {
				h.lists.complete++
				var err error
				_, requeue, err = h.Sync()
				require.NoError(t, err)
			}
			assert.Len(t, h.deletions(), 1)
			assert.Equal(t, test.later, requeue)
			h.ExpectEvents()
			h.ExpectSeries("nstance_operator_orphan_nodes_deleted_total 0")
			h.log.Expect(t)
		})
	}
}

func TestOnlyNodesThatMayBeOrphanedAreEnqueued(t *testing.T) {
	h := newHarness(t, func(*harness) {})
	healthy := h.node.DeepCopy()
	h.ready(healthy, corev1.ConditionTrue, time.Hour)
	foreign := h.node.DeepCopy()
	foreign.Spec.ProviderID = "aws:///us-west-2a/i-0123456789abcdef0"
	enqueued := controllertest.Enqueued(t, &h.controller.queue, func() {
		h.controller.nodeChanged(nil, healthy)
		h.controller.nodeChanged(nil, foreign)
		h.controller.nodeChanged(h.node, h.node)
		h.controller.nodeChanged(h.node, healthy)
	})
	assert.Empty(t, enqueued)
	enqueued = controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.nodeChanged(healthy, h.node) })
	assert.Equal(t, []string{"late at 0s"}, enqueued)
	assert.Equal(t, []string{"late"}, h.controller.keys())
	// The shard may be the one that could not be asked.
	enqueued = controllertest.Enqueued(t, &h.controller.queue, func() { h.Fake.NotifyShard("b") })
	assert.Equal(t, []string{"late at 0s"}, enqueued)
}

// countingIndexer counts the objects that are read from a cache.
type countingIndexer struct {
	cache.Indexer
	read int
}

func (c *countingIndexer) List() []any {
	found := c.Indexer.List()
	c.read += len(found)
	return found
}

func (c *countingIndexer) ByIndex(index, value string) ([]any, error) {
	found, err := c.Indexer.ByIndex(index, value)
	c.read += len(found)
	return found, err
}

// Two hundred shards connect when an operator of a large cluster starts.
func TestAChangeOfAShardVisitsOnlyNodesThatMayBeOrphaned(t *testing.T) {
	h := newHarness(t, func(*harness) {})
	for n := range 1000 {
		healthy := h.node.DeepCopy()
		healthy.Name = fmt.Sprint("healthy-", n)
		h.ready(healthy, corev1.ConditionTrue, time.Hour)
		h.Put(h.Informers.Nodes, healthy)
	}
	counted := &countingIndexer{Indexer: h.controller.nodes}
	h.controller.nodes = counted
	enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { h.Fake.NotifyShard("b") })
	assert.Equal(t, []string{"late at 0s"}, enqueued)
	assert.Equal(t, 1, counted.read, "Nodes that were read")

	// A Node that reports again is no candidate.
	healthy := h.node.DeepCopy()
	h.ready(healthy, corev1.ConditionTrue, time.Hour)
	h.Put(h.Informers.Nodes, healthy)
	assert.Empty(t, h.controller.keys())
}
