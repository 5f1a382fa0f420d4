// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller/controllertest"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// shardSizes are shards that are configured and synced, by id, with the size of
// the group "workers" on each.
type shardSizes map[string]int32

func (s shardSizes) Has(id string) bool {
	_, ok := s[id]
	return ok
}

func (s shardSizes) HasSynced(id string) bool { return s.Has(id) }

func (s shardSizes) Get(id, key string) (shard.Group, bool) {
	size, ok := s[id]
	return shard.Group{Key: key, Size: size}, ok && key == "workers" && size > 0
}

// shardGroups are what shards report of the group "workers", by id. All are
// configured and synced.
type shardGroups map[string]*shard.Group

func (s shardGroups) Has(id string) bool {
	_, ok := s[id]
	return ok
}

func (s shardGroups) HasSynced(id string) bool { return s.Has(id) }

func (s shardGroups) Get(id, _ string) (shard.Group, bool) {
	if group := s[id]; group != nil {
		return *group, true
	}
	return shard.Group{}, false
}

// harness is a controller whose caches show what the test wants.
type harness struct {
	*controllertest.API

	t            *testing.T
	controller   *Controller
	informers    infrastructure.Interface
	capi         *controllertest.CAPI
	machinePools *capi.Informer[*clusterv1.MachinePool]
	clusters     *capi.Informer[*clusterv1.Cluster]
	nodes        cache.SharedIndexInformer
	recorder     *events.FakeRecorder
}

// newHarness makes a controller that sees objects in its caches.
func newHarness(t *testing.T, shards interface {
	Shards
	Groups
}, objects ...runtime.Object) *harness {
	t.Helper()
	h := &harness{
		API:      controllertest.NewAPI(t, objects...),
		t:        t,
		capi:     controllertest.NewCAPI(t),
		nodes:    kubeinformers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Nodes().Informer(),
		recorder: events.NewFakeRecorder(10),
	}
	h.informers = h.Informers()
	h.machinePools = capi.NewMachinePoolInformer(h.capi.Client, namespace, 0)
	h.clusters = capi.NewClusterInformer(h.capi.Client, namespace, 0)
	c, _, err := New(namespace, "cluster--default", h.InfrastructureV1beta1(), h.capi.Client,
		h.informers.NstanceMachinePools(), h.informers.NstanceShardGroups(), h.informers.NstanceMachines(), h.machinePools, h.clusters, h.nodes, shards, shards, h.recorder)
	if err != nil {
		t.Fatal(err)
	}
	h.controller = c
	// A cache that has synced knows how new it is, empty or not.
	if err := h.machinePools.GetIndexer().Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	h.show()
	return h
}

// show makes the caches of our kinds up to date.
func (h *harness) show() { h.Show(h.informers) }

// scale has the cache show the pool's MachinePool with these replicas.
func (h *harness) scale(replicas int32) {
	h.t.Helper()
	if err := h.machinePools.GetIndexer().Add(machinePool("workers", &replicas)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) addNodes(nodes ...*corev1.Node) {
	h.t.Helper()
	for _, node := range nodes {
		if err := h.nodes.GetIndexer().Add(node); err != nil {
			h.t.Fatal(err)
		}
	}
}

// sync syncs the pool once and returns the writes, sorted.
func (h *harness) sync() (writes []string, requeue time.Duration, err error) {
	ctx := klog.NewContext(h.t.Context(), ktesting.NewLogger(h.t, ktesting.NewConfig()))
	requeue, err = h.controller.sync(ctx, cache.NewObjectName(namespace, "workers"))
	writes = h.Writes()
	slices.Sort(writes)
	return writes, requeue, err
}

// expect syncs the pool once, without an error, and compares the writes.
func (h *harness) expect(want ...string) {
	h.t.Helper()
	got, _, err := h.sync()
	if err != nil {
		h.t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		h.t.Errorf("wrote %q, want %q", got, want)
	}
}

// report puts a status into a shard group as its own controller would.
func (h *harness) report(shard string, change func(*v1beta1.NstanceShardGroup)) {
	h.t.Helper()
	group := h.shardGroup(shard)
	change(group)
	resource := v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups")
	if err := h.Tracker().Update(resource, group, namespace); err != nil {
		h.t.Fatal(err)
	}
	h.show()
}

// forget has a shard group gone, from the API server and the caches.
func (h *harness) forget(shard string) {
	h.t.Helper()
	resource := v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups")
	if err := h.Tracker().Delete(resource, namespace, v1beta1.ShardGroupName("workers", shard)); err != nil {
		h.t.Fatal(err)
	}
	h.show()
}

func (h *harness) pool() *v1beta1.NstanceMachinePool {
	h.t.Helper()
	pool, err := h.InfrastructureV1beta1().NstanceMachinePools(namespace).Get(context.Background(), "workers", metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return pool
}

func (h *harness) shardGroup(shard string) *v1beta1.NstanceShardGroup {
	h.t.Helper()
	group, err := h.InfrastructureV1beta1().NstanceShardGroups(namespace).
		Get(context.Background(), v1beta1.ShardGroupName("workers", shard), metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return group
}

// events are what was recorded since the last call.
func (h *harness) events() []string {
	var recorded []string
	for {
		select {
		case event := <-h.recorder.Events:
			recorded = append(recorded, event)
		default:
			return recorded
		}
	}
}
