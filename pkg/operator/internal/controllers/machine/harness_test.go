// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

var (
	nstanceMachines = v1beta1.SchemeGroupVersion.WithResource("nstancemachines")
	shardGroups     = v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups")
)

// harness is a controller and what it depends on. The objects of most tests are
// the NstanceMachine "m" and instances on shard a.
type harness struct {
	*controllertest.Harness

	controller *Controller
	drains     *fakeDrains
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

// newHarness returns a controller with these shards whose caches have the
// NstanceMachines and a Machine for each.
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
	h.controller = c
}

// restart replaces the controller by a new one. The cache of NstanceMachines stays
// as old as it is.
func (h *harness) restart() {
	h.T.Helper()
	store := h.Informers.Nstance.NstanceMachines().Informer().GetStore()
	h.Informers.Nstance = h.NewInformers()
	require.NoError(h.T, h.Informers.Nstance.NstanceMachines().Informer().GetIndexer().Replace(store.List(), store.LastStoreSyncResourceVersion()))
	h.newController()
}

// shardA is the fake of shard a.
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

// requests is the number of different create requests.
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

// scale changes the replicas of the MachinePool on the API server, and not in the
// cache.
func (h *harness) scale(replicas int32) {
	h.T.Helper()
	h.CAPI.Created = slices.DeleteFunc(h.CAPI.Created, func(object *unstructured.Unstructured) bool {
		return object.GetKind() == "MachinePool"
	})
	h.CAPI.Has(h.T, newMachinePool(replicas))
}

// resize changes what the pool wants on shard a.
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

// nstanceMachine returns an NstanceMachine of the API server, nil when there is none.
func (h *harness) nstanceMachine(name string) *v1beta1.NstanceMachine {
	return controllertest.Get[*v1beta1.NstanceMachine](h.API, name)
}

// syncAll syncs every NstanceMachine of the cache.
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

// What a sync may do.
const (
	applyM       = "apply nstancemachines m"
	applyStatusM = "apply nstancemachines/status m"
	patchM       = "patch nstancemachines m"
	deleteM      = "delete nstancemachines m"
	createOnA    = "create large of workers on a"
	getOnA       = "get i-1 on a"
	deleteOnA    = "delete i-1 on a"
)
