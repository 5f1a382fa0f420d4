// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

var (
	nstanceMachines = v1beta1.SchemeGroupVersion.WithResource("nstancemachines")
	shardGroups     = v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups")
)

// harness is a controller with its dependencies. Most tests use the NstanceMachine "m" and
// instances on shard a.
type harness struct {
	*controllertest.Harness

	controller *Controller
	drains     *fakeDrains
	// counted are the NstanceMachines whose placements the controller has counted.
	counted map[string]*v1beta1.NstanceMachine
}

// fakeDrains reports the same drain for every instance.
type fakeDrains struct {
	drain

	handlers []func(shard, group, instanceID string)
}

func (f *fakeDrains) OfInstance(_, _ string) (blocked bool, message string, draining bool) {
	return f.blocked, f.message, f.running
}

func (f *fakeDrains) AddHandler(handler func(shard, group, instanceID string)) {
	f.handlers = append(f.handlers, handler)
}

// declined is the error of a request that the shard does not carry out.
var declined = status.Error(codes.FailedPrecondition, "group does not exist")

// newShards returns shards that are connected and have the group "workers".
func newShards(ids ...string) *shardtest.Shards {
	shards := shardtest.New(ids...)
	for _, id := range ids {
		shards.SetGroup(id, shard.Group{Key: "workers", ETag: "1"})
	}
	return shards
}

// newHarness returns a controller with these shards whose caches have the NstanceMachines,
// each with a Machine.
func newHarness(t testing.TB, shards *shardtest.Shards, all ...*v1beta1.NstanceMachine) *harness {
	t.Helper()
	objects := make([]runtime.Object, len(all))
	for i, nstanceMachine := range all {
		objects[i] = nstanceMachine
	}
	h := &harness{Harness: controllertest.NewHarness(t, shards, objects...), drains: &fakeDrains{}}
	h.SyncKey = func() (time.Duration, error) { return h.controller.sync(h.Ctx, controllertest.Key("m")) }
	h.Put(h.Informers.Clusters, newCluster())
	for _, nstanceMachine := range all {
		h.Put(h.Informers.Machines, newMachine(nstanceMachine.Name))
	}
	h.newController()
	return h
}

func (h *harness) newController() {
	h.T.Helper()
	c, err := New(h.Dependencies, Options{Drains: h.drains})
	require.NoError(h.T, err)
	h.controller, h.counted = c, map[string]*v1beta1.NstanceMachine{}
	h.Shown = h.count
	h.count()
}

// count lets the controller count the placements that have changed in the cache, as the handler of a
// running informer does.
func (h *harness) count() {
	shown := map[string]*v1beta1.NstanceMachine{}
	for _, object := range h.Informers.Nstance.NstanceMachines().Informer().GetStore().List() {
		nstanceMachine := object.(*v1beta1.NstanceMachine)
		shown[nstanceMachine.Name] = nstanceMachine
		h.controller.placements.changed(h.counted[nstanceMachine.Name], nstanceMachine)
	}
	for name, former := range h.counted {
		if shown[name] == nil {
			h.controller.placements.changed(former, nil)
		}
	}
	h.counted = shown
}

// restart replaces the controller. The cache of NstanceMachines is not updated.
func (h *harness) restart() {
	h.T.Helper()
	store := h.Informers.Nstance.NstanceMachines().Informer().GetStore()
	h.Informers.Nstance = h.NewInformers()
	require.NoError(h.T, h.Informers.Nstance.NstanceMachines().Informer().GetIndexer().Replace(store.List(), store.LastStoreSyncResourceVersion()))
	h.newController()
}

// shardA returns the fake of shard a.
func (h *harness) shardA() *shardtest.Shard { return h.Fake.ByID["a"] }

// changeGroup changes the group "workers" of shard a in the cache.
func (h *harness) changeGroup(change func(*shard.Group)) {
	group := h.shardA().Groups["workers"]
	change(&group)
	h.Fake.SetGroup("a", group)
}

// list sets the instances that shard a lists.
func (h *harness) list(instances ...shard.Instance) {
	h.Fake.SetGroup("a", shard.Group{Key: "workers", ETag: "1", ListsInstances: true, Instances: instances})
}

// runInstance makes instance i-1 of shard a running.
func (h *harness) runInstance() {
	h.shardA().Instances["i-1"] = shard.Instance{ID: "i-1", State: shard.InstanceRunning, ProviderID: "provider-i-1"}
}

// requests returns the number of different create requests.
func (h *harness) requests() int {
	requests := 0
	for _, on := range h.Fake.ByID {
		requests += len(on.Requests)
	}
	return requests
}

// addPool adds the pool with these sizes on shards a and b, and a MachinePool with
// replicas.
func (h *harness) addPool(replicas, onA, onB int32) {
	h.T.Helper()
	for _, object := range []runtime.Object{newPool(), newShardGroup("a", onA), newShardGroup("b", onB)} {
		require.NoError(h.T, h.Tracker().Add(object))
	}
	h.scale(replicas)
	h.Put(h.Informers.MachinePools, newMachinePool(replicas))
}

// scale changes the replicas of the MachinePool on the API server, but not in the cache.
func (h *harness) scale(replicas int32) {
	h.T.Helper()
	h.CAPI.Created = slices.DeleteFunc(h.CAPI.Created, func(object *unstructured.Unstructured) bool {
		return object.GetKind() == "MachinePool"
	})
	h.CAPI.Has(h.T, newMachinePool(replicas))
}

// resize changes the shard group of the pool on shard a.
func (h *harness) resize(size int32, removeFirst ...string) {
	h.T.Helper()
	require.NoError(h.T, h.Tracker().Update(shardGroups, newShardGroup("a", size, removeFirst...), controllertest.Namespace))
}

// hideMachine removes the Machine "m" from the cache.
func (h *harness) hideMachine() {
	h.T.Helper()
	h.Remove(h.Informers.Machines, newMachine("m"))
}

func (h *harness) addNode(node *corev1.Node) { h.Put(h.Informers.Nodes, node) }

// expectReady compares the condition Ready.
func (h *harness) expectReady(want string) {
	h.T.Helper()
	h.expectCondition(v1beta1.ConditionReady, want)
}

func (h *harness) expectCondition(kind, want string) {
	h.T.Helper()
	assert.Equal(h.T, want, conditionOf(h.nstanceMachine("m"), kind), kind)
}

// change changes the NstanceMachine "m" on the API server.
func (h *harness) change(change func(*v1beta1.NstanceMachine)) {
	h.T.Helper()
	controllertest.Change(h.API, "m", change)
}

// nstanceMachine returns an NstanceMachine from the API server, nil if it does not exist.
func (h *harness) nstanceMachine(name string) *v1beta1.NstanceMachine {
	return controllertest.Get[*v1beta1.NstanceMachine](h.API, name)
}

// syncAll syncs every NstanceMachine in the cache.
func (h *harness) syncAll() {
	h.T.Helper()
	for _, key := range h.Informers.Nstance.NstanceMachines().Informer().GetStore().ListKeys() {
		name, err := cache.ParseObjectName(key)
		require.NoError(h.T, err)
		if _, err := h.controller.sync(h.Ctx, name); err != nil {
			h.T.Error(err)
		}
	}
}

// Actions of a sync.
const (
	applyM       = "apply nstancemachines m"
	applyStatusM = "apply nstancemachines/status m"
	patchM       = "patch nstancemachines m"
	deleteM      = "delete nstancemachines m"
	createOnA    = "create large of workers on a"
	getOnA       = "get i-1 on a"
	deleteOnA    = "delete i-1 on a"
)

// newNstanceMachine returns an NstanceMachine of the group "workers". The Machine with the
// same name owns it.
func newNstanceMachine(name string) *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: controllertest.Namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1,
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(newMachine(name), clusterv1.GroupVersion.WithKind("Machine")),
			},
		},
		Spec: v1beta1.NstanceMachineSpec{
			GroupRef: v1beta1.GroupReference{Name: "workers"}, InstanceType: "large", Vars: map[string]string{"a": "1"},
		},
	}
}

// newPoolMember returns an NstanceMachine for the pool's instance with the same name, in the
// group "workers" on shard a. It has no Machine yet.
func newPoolMember(name string) *v1beta1.NstanceMachine {
	pool := newPool()
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: controllertest.Namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1,
			Labels:     map[string]string{clusterv1.MachinePoolNameLabel: "pool"},
			Finalizers: []string{v1beta1.FinalizerMachine},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: v1beta1.PoolKind, Name: pool.Name, UID: pool.UID},
			},
		},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: "a"},
	}
}

// runningPoolMember returns a pool member whose instance was reported as running.
func runningPoolMember(name string) *v1beta1.NstanceMachine {
	nstanceMachine := running(newPoolMember(name), name)
	nstanceMachine.Status.RequestID, nstanceMachine.Annotations = "", nil
	return nstanceMachine
}

func withoutShard(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.Spec.Shard = ""
	return nstanceMachine
}

// withoutStatus leaves only the spec, as a restore of a backup may.
func withoutStatus(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.Status, nstanceMachine.Annotations = v1beta1.NstanceMachineStatus{}, nil
	return nstanceMachine
}

func withPoolLabel(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.Labels = newPoolMember(nstanceMachine.Name).Labels
	return nstanceMachine
}

// owned makes the Machine with the same name the owner.
func owned(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.OwnerReferences = append(nstanceMachine.OwnerReferences, newNstanceMachine(nstanceMachine.Name).OwnerReferences...)
	return nstanceMachine
}

// newPool returns the pool of the group "workers" on shards a and b.
func newPool() *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "pool", UID: "uid-of-pool"},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: []v1beta1.Identifier{"a", "b"}},
	}
}

// newMachine returns a Machine with empty bootstrap data.
func newMachine(name string) *clusterv1.Machine {
	machine := controllertest.NewMachine(name)
	machine.ResourceVersion, machine.Spec.Bootstrap.DataSecretName = "7", ptr.To("")
	return machine
}

// newShardGroup returns the shard group of the pool on a shard.
func newShardGroup(id string, size int32, removeFirst ...string) *v1beta1.NstanceShardGroup {
	group := controllertest.NewShardGroup(newPool(), v1beta1.Identifier(id))
	group.Spec.Size, group.Spec.RemoveFirst = size, removeFirst
	return group
}

// newMachinePool returns the MachinePool that refers to the pool.
func newMachinePool(replicas int32) *clusterv1.MachinePool {
	machinePool := controllertest.NewMachinePool("machine-pool", "pool")
	machinePool.Spec.Replicas = &replicas
	return machinePool
}

func newCluster() *clusterv1.Cluster {
	cluster := controllertest.NewCluster()
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	return cluster
}

func newNode(name, providerID string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-node-" + name)},
		Spec:       corev1.NodeSpec{ProviderID: providerID},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: "Carrier", Address: "pigeon"}, {Type: corev1.NodeHostName, Address: name},
		}},
	}
}

// The following functions bring an NstanceMachine to a stage of its life, with all writes of
// the stages before.

func withFinalizer(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.Finalizers = []string{v1beta1.FinalizerMachine}
	return nstanceMachine
}

func withShard(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	withFinalizer(nstanceMachine)
	nstanceMachine.Status.Shard, nstanceMachine.Status.FailureDomain, nstanceMachine.Status.RequestID = "a", "a", string(nstanceMachine.UID)
	nstanceMachine.Annotations = map[string]string{v1beta1.AnnotationRequest: "a/" + string(nstanceMachine.UID)}
	return nstanceMachine
}

func withInstance(nstanceMachine *v1beta1.NstanceMachine, instance string) *v1beta1.NstanceMachine {
	withShard(nstanceMachine).Status.InstanceID = instance
	return nstanceMachine
}

func running(nstanceMachine *v1beta1.NstanceMachine, instance string) *v1beta1.NstanceMachine {
	withInstance(nstanceMachine, instance)
	nstanceMachine.Annotations[v1beta1.AnnotationInstanceID] = instance
	nstanceMachine.Spec.ProviderID = "provider-" + instance
	nstanceMachine.Status.ProviderID = nstanceMachine.Spec.ProviderID
	nstanceMachine.Status.Ready, nstanceMachine.Status.Initialization.Provisioned = ptr.To(true), ptr.To(true)
	nstanceMachine.Status.ObservedGeneration = 1
	setCondition(nstanceMachine, v1beta1.ConditionInstanceCreated, metav1.ConditionTrue, v1beta1.ReasonInstanceCreated, "")
	setCondition(nstanceMachine, v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	setCondition(nstanceMachine, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, "")
	return nstanceMachine
}

func deleting(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine.DeletionTimestamp = ptr.To(metav1.Now())
	return nstanceMachine
}

func withServerDeleted(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	setCondition(nstanceMachine, v1beta1.ConditionServerDeleted, metav1.ConditionTrue, v1beta1.ReasonServerDeleted, "unhealthy")
	return nstanceMachine
}

func setCondition(nstanceMachine *v1beta1.NstanceMachine, kind string, status metav1.ConditionStatus, reason, message string) {
	controller.SetCondition(&nstanceMachine.Status.Conditions, nstanceMachine.Generation, kind, status, reason, message)
}

// conditionOf returns a condition as text, "" if it is not set.
func conditionOf(nstanceMachine *v1beta1.NstanceMachine, kind string) string {
	condition := meta.FindStatusCondition(nstanceMachine.Status.Conditions, kind)
	if condition == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, condition.Message)
}
