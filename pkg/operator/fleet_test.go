// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	listers "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/internal/controllers/ondemand"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/testing/tier"
)

// visits counts the objects of caches that are read.
type visits struct{ atomic.Int64 }

// add counts n objects, at least one, because a search is a visit, too.
func (v *visits) add(n int) { v.Add(int64(max(n, 1))) }

// countedIndexer counts the objects that are read from a cache.
type countedIndexer struct {
	cache.Indexer
	visits *visits
}

func (c countedIndexer) List() []any {
	found := c.Indexer.List()
	c.visits.add(len(found))
	return found
}

func (c countedIndexer) ListKeys() []string {
	found := c.Indexer.ListKeys()
	c.visits.add(len(found))
	return found
}

func (c countedIndexer) GetByKey(key string) (any, bool, error) {
	c.visits.add(1)
	return c.Indexer.GetByKey(key)
}

func (c countedIndexer) IndexKeys(index, value string) ([]string, error) {
	found, err := c.Indexer.IndexKeys(index, value)
	c.visits.add(len(found))
	return found, err
}

func (c countedIndexer) ByIndex(index, value string) ([]any, error) {
	found, err := c.Indexer.ByIndex(index, value)
	c.visits.add(len(found))
	return found, err
}

// fedInformer is an informer that is not connected: a test gives it the objects, and calls the
// handlers with them.
type fedInformer struct {
	cache.SharedIndexInformer
	indexer  countedIndexer
	handlers []cache.ResourceEventHandler
}

func newFedInformer(informer cache.SharedIndexInformer, visits *visits) *fedInformer {
	return &fedInformer{SharedIndexInformer: informer, indexer: countedIndexer{informer.GetIndexer(), visits}}
}

func (i *fedInformer) GetIndexer() cache.Indexer { return i.indexer }
func (i *fedInformer) GetStore() cache.Store     { return i.indexer }
func (i *fedInformer) HasSynced() bool           { return true }

func (i *fedInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handlers = append(i.handlers, handler)
	return i.SharedIndexInformer.AddEventHandler(handler)
}

// change puts an object into the cache, and calls the handlers.
func (i *fedInformer) change(object metav1.Object) {
	before, found, _ := i.indexer.Get(object)
	_ = i.indexer.Update(object)
	for _, handler := range i.handlers {
		if found {
			handler.OnUpdate(before, object)
		} else {
			handler.OnAdd(object, false)
		}
	}
}

// remove removes an object from the cache, and calls the handlers.
func (i *fedInformer) remove(object metav1.Object) {
	_ = i.indexer.Delete(object)
	for _, handler := range i.handlers {
		handler.OnDelete(object)
	}
}

// fill fills the cache before the operator leads.
func (i *fedInformer) fill(t *testing.T, objects []any) {
	t.Helper()
	require.NoError(t, i.indexer.Replace(objects, "1"))
}

// nstanceInformers are informers of our kinds that a test feeds.
type nstanceInformers struct {
	infrastructure.Interface
	pools, shardGroups, nstanceMachines *fedInformer
}

func (n nstanceInformers) NstanceMachinePools() infrastructure.NstanceMachinePoolInformer {
	return poolInformer{n.pools}
}

func (n nstanceInformers) NstanceShardGroups() infrastructure.NstanceShardGroupInformer {
	return shardGroupInformer{n.shardGroups}
}

func (n nstanceInformers) NstanceMachines() infrastructure.NstanceMachineInformer {
	return nstanceMachineInformer{n.nstanceMachines}
}

type (
	poolInformer           struct{ *fedInformer }
	shardGroupInformer     struct{ *fedInformer }
	nstanceMachineInformer struct{ *fedInformer }
)

func (i poolInformer) Informer() cache.SharedIndexInformer           { return i.fedInformer }
func (i shardGroupInformer) Informer() cache.SharedIndexInformer     { return i.fedInformer }
func (i nstanceMachineInformer) Informer() cache.SharedIndexInformer { return i.fedInformer }

func (i poolInformer) Lister() listers.NstanceMachinePoolLister {
	return listers.NewNstanceMachinePoolLister(i.indexer)
}

func (i shardGroupInformer) Lister() listers.NstanceShardGroupLister {
	return listers.NewNstanceShardGroupLister(i.indexer)
}

func (i nstanceMachineInformer) Lister() listers.NstanceMachineLister {
	return listers.NewNstanceMachineLister(i.indexer)
}

// countedShards are the configured shards and the caches of their groups, whose reads are counted.
type countedShards struct {
	shard.Set
	shard.Groups
	ids    []string
	having map[string][]string
	visits *visits
}

func (c *countedShards) Shards() []string {
	c.visits.add(len(c.ids))
	return c.ids
}

func (c *countedShards) Has(id string) bool {
	c.visits.add(1)
	_, found := slices.BinarySearch(c.ids, id)
	return found
}

func (c *countedShards) AddHandler(handler func(string)) { c.Set.AddHandler(handler) }

type countedGroups struct{ *countedShards }

func (c countedGroups) AddHandler(handler shard.GroupHandler) { c.Groups.AddHandler(handler) }

func (c countedGroups) ShardsWith(key string) []string {
	c.visits.add(len(c.having[key]))
	return c.having[key]
}

func (c countedGroups) Get(id, key string) (shard.Group, bool) {
	c.visits.add(1)
	return c.Groups.Get(id, key)
}

func (c countedGroups) List(id string) []shard.Group {
	found := c.Groups.List(id)
	c.visits.add(len(found))
	return found
}

func (c countedGroups) HasSynced(id string) bool {
	c.visits.add(1)
	return c.Groups.HasSynced(id)
}

func (c countedGroups) Reachable(id string) (bool, error) {
	c.visits.add(1)
	return c.Groups.Reachable(id)
}

// fleet is an operator that leads, with a fleet in its caches and an API server that accepts every
// write and changes nothing.
type fleet struct {
	t      *testing.T
	visits visits
	shards *shardtest.Shards

	pools, shardGroups, machinePools, nodes *fedInformer
	writes                                  atomic.Int64
	// objects is the number of pools, MachinePools and shard groups before the start, and instances the
	// number of instances of the large group. start is the cost since the operator leads, and startTime its
	// processor time.
	objects, instances int
	start              cost
	startTime          time.Duration
	// version is the last resource version.
	version int
}

// fleetSize is the size of a fleet. Each group is on three shards.
type fleetSize struct{ shards, groupsPerShard, nodes, largeGroup int }

func poolName(n int) string  { return fmt.Sprintf("pool-%05d", n) }
func shardName(n int) string { return fmt.Sprintf("shard-%03d", n) }

// large is a pool whose only group, on the first shard, has many instances.
const large = "large"

// startFleet returns an operator that has been leading for a while.
func startFleet(t *testing.T, size fleetSize) *fleet {
	t.Helper()
	f := &fleet{t: t, shards: shardtest.New(), version: 1}
	counted := &countedShards{Set: f.shards, Groups: f.shards.Groups(), having: map[string][]string{}, visits: &f.visits}
	for n := range size.shards {
		counted.ids = append(counted.ids, shardName(n))
		f.shards.ByID[shardName(n)] = shardtest.NewShard()
	}
	h := controllertest.NewHarness(t, f.shards)
	var pools, shardGroups, machinePools, nodes []any
	add := func(name string, instances int, shards ...string) {
		pool, machinePool := newFleetPool(name, shards)
		pools, machinePools = append(pools, pool), append(machinePools, machinePool)
		counted.having[name] = shards
		for _, id := range shards {
			group, shardGroup := newFleetGroup(pool, id, instances)
			f.shards.ByID[id].Groups[name] = group
			shardGroups = append(shardGroups, shardGroup)
		}
	}
	for n := range size.shards * size.groupsPerShard / 3 {
		ids := []string{shardName(n % size.shards), shardName((n + 1) % size.shards), shardName((n + 2) % size.shards)}
		slices.Sort(ids)
		add(poolName(n), 1, ids...)
	}
	add(large, size.largeGroup, shardName(0))
	for n := range size.nodes {
		nodes = append(nodes, newFleetNode(fmt.Sprint("node-", n)))
	}

	informers := nstanceInformers{Interface: h.Informers.Nstance}
	f.pools = newFedInformer(h.Informers.Nstance.NstanceMachinePools().Informer(), &f.visits)
	f.shardGroups = newFedInformer(h.Informers.Nstance.NstanceShardGroups().Informer(), &f.visits)
	informers.pools, informers.shardGroups = f.pools, f.shardGroups
	informers.nstanceMachines = newFedInformer(h.Informers.Nstance.NstanceMachines().Informer(), &f.visits)
	f.machinePools = newFedInformer(h.Informers.MachinePools.SharedIndexInformer, &f.visits)
	f.nodes = newFedInformer(h.Informers.Nodes, &f.visits)
	f.pools.fill(t, pools)
	f.shardGroups.fill(t, shardGroups)
	f.machinePools.fill(t, machinePools)
	f.nodes.fill(t, nodes)
	h.Put(h.Informers.Clusters, controllertest.NewCluster())
	h.Informers.Nstance = informers
	h.Informers.MachinePools.SharedIndexInformer = f.machinePools
	h.Informers.Nodes = f.nodes
	h.Informers.Pods = newFedInformer(ondemand.NewPodInformer(h.Workload.Metadata, "", 0), &f.visits)
	h.Shards, h.NamedShards, h.Groups = counted, counted, countedGroups{counted}
	h.Recorder = noEvents{}
	h.Clock = clock.RealClock{}
	h.PrependReactor("*", "*", f.accept)
	var err error
	h.Dependencies.CAPI, err = capi.NewForConfig(&rest.Config{Host: "http://capi.test", Transport: f})
	require.NoError(t, err)

	f.objects, f.instances = len(pools)+len(shardGroups)+len(machinePools), size.largeGroup
	before, begun := f.measure(), processorTime(t)
	list, err := newControllers(&Options{Namespace: h.Namespace, CAPIEndpoint: "https://api.test:6443", ImportDelay: window / 2}, &clients{}, noIdentity{}, h.Dependencies)
	require.NoError(t, err)
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	for _, controller := range list {
		running.Go(func() { controller.Run(ctx) })
	}
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	nstanceCluster, err := h.Nstance.NstanceClusters(h.Namespace).Get(t.Context(), controllertest.ClusterName, metav1.GetOptions{})
	require.NoError(t, err)
	h.Put(h.Informers.Nstance.NstanceClusters().Informer(), nstanceCluster)
	f.start, f.startTime = f.measure().minus(before), processorTime(t)-begun
	return f
}

// processorTime returns the processor time that this process has used. The clock of a test does not
// measure it.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func newFleetPool(name string, shards []string) (*v1beta1.NstanceMachinePool, *clusterv1.MachinePool) {
	pool := &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: controllertest.Namespace, Name: name, UID: types.UID("uid-" + name), Generation: 1, ResourceVersion: "1",
			Finalizers: []string{v1beta1.FinalizerMachinePool},
		},
		Spec: v1beta1.NstanceMachinePoolSpec{Group: v1beta1.Identifier(name), GroupSettings: v1beta1.GroupSettings{Template: "worker"}},
	}
	for _, id := range shards {
		pool.Spec.Shards = append(pool.Spec.Shards, v1beta1.Identifier(id))
	}
	machinePool := controllertest.NewMachinePool(name, name)
	machinePool.ResourceVersion = "1"
	machinePool.Spec.Replicas = ptr.To(int32(len(shards)))
	pool.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool", Name: name, UID: machinePool.UID,
	}}
	return pool, machinePool
}

func newFleetGroup(pool *v1beta1.NstanceMachinePool, id string, instances int) (shard.Group, *v1beta1.NstanceShardGroup) {
	shardGroup := controllertest.NewShardGroup(pool, v1beta1.Identifier(id))
	shardGroup.UID, shardGroup.ResourceVersion = types.UID("uid-"+shardGroup.Name), "1"
	shardGroup.Finalizers = []string{v1beta1.FinalizerShardGroup}
	shardGroup.Labels = map[string]string{v1beta1.LabelGroup: pool.Name, v1beta1.LabelShard: id}
	shardGroup.Spec.Size, shardGroup.Spec.GroupSettings = int32(instances), pool.Spec.GroupSettings
	group := shard.Group{
		Key: pool.Name, GroupSettings: shard.GroupSettings{Template: "worker"}, Size: int32(instances), ActualSize: int32(instances), ListsInstances: true,
	}
	for n := range instances {
		instance := shard.Instance{ID: fmt.Sprintf("%s-%s-%d", pool.Name, id, n), State: shard.InstanceRunning}
		instance.ProviderID = "fleet:///" + instance.ID
		group.Instances = append(group.Instances, instance)
		group.ProviderIDs = append(group.ProviderIDs, instance.ProviderID)
	}
	shardGroup.Status.ProviderIDs = group.ProviderIDs
	shardGroup.Status.Replicas = ptr.To(int32(instances))
	return group, shardGroup
}

func newFleetNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1", Labels: map[string]string{v1beta1.LabelShard: shardName(0)}},
		Spec:       corev1.NodeSpec{ProviderID: "fleet:///" + name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()},
		}},
	}
}

// noEvents records no events.
type noEvents struct{}

// Eventf implements events.EventRecorder.
func (noEvents) Eventf(_, _ apiruntime.Object, _, _, _, _ string, _ ...any) {}

// noIdentity is a certificate whose state is not known.
type noIdentity struct{}

// State implements cluster.ConditionSource.
func (noIdentity) State() metav1.Condition { return metav1.Condition{} }

// AddHandler implements cluster.ConditionSource.
func (noIdentity) AddHandler(func()) {}

// accept answers each write of our kinds with the object in the cache.
func (f *fleet) accept(action clienttesting.Action) (bool, apiruntime.Object, error) {
	f.writes.Add(1)
	named, ok := action.(interface{ GetName() string })
	informer := map[string]*fedInformer{"nstancemachinepools": f.pools, "nstanceshardgroups": f.shardGroups}[action.GetResource().Resource]
	if !ok || informer == nil {
		return false, nil, nil
	}
	object, found, err := informer.indexer.Indexer.GetByKey(controllertest.Namespace + "/" + named.GetName())
	if !found || err != nil {
		return false, nil, err
	}
	return true, object.(apiruntime.Object), nil
}

// RoundTrip answers each request for a MachinePool with the object in the cache.
func (f *fleet) RoundTrip(request *http.Request) (*http.Response, error) {
	f.writes.Add(1)
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	respond := func(status int, object any) (*http.Response, error) {
		data, err := json.Marshal(object)
		return &http.Response{
			StatusCode: status, Request: request, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(data)),
		}, err
	}
	if len(parts) > 6 && parts[5] == "machinepools" {
		if object, found, _ := f.machinePools.indexer.Indexer.GetByKey(controllertest.Namespace + "/" + parts[6]); found {
			return respond(http.StatusOK, object)
		}
	}
	if kind := map[string]string{"machines": "MachineList", "machinepools": "MachinePoolList"}[parts[len(parts)-1]]; kind != "" && request.Method == http.MethodGet {
		return respond(http.StatusOK, map[string]any{"apiVersion": clusterv1.GroupVersion.String(), "kind": kind, "items": []any{}})
	}
	return respond(http.StatusNotFound, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound,
		Code: http.StatusNotFound, Message: path.Base(request.URL.Path) + " not found",
	})
}

// next returns the next resource version.
func (f *fleet) next() string {
	f.version++
	return fmt.Sprint(f.version)
}

// cost is the work of the operator: the objects of caches that it reads, and its allocations.
type cost struct{ visits, allocations, bytes int64 }

func (c cost) minus(before cost) cost {
	return cost{c.visits - before.visits, c.allocations - before.allocations, c.bytes - before.bytes}
}

// measure returns the cost of everything so far.
func (f *fleet) measure() cost {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return cost{f.visits.Load(), int64(memory.Mallocs), int64(memory.TotalAlloc)}
}

// window is how long the operator is observed after an event: longer than each of its batches.
const window = 12 * time.Second

// costOf returns the median cost of an event.
func (f *fleet) costOf(event func()) cost {
	var visited, allocated, sizes []int64
	for range 5 {
		before := f.measure()
		event()
		time.Sleep(window)
		synctest.Wait()
		spent := f.measure().minus(before)
		visited, allocated, sizes = append(visited, spent.visits), append(allocated, spent.allocations), append(sizes, spent.bytes)
	}
	median := func(values []int64) int64 {
		slices.Sort(values)
		return values[len(values)/2]
	}
	return cost{median(visited), median(allocated), median(sizes)}
}

// events are what happens in a fleet, on other groups than the large group.
func (f *fleet) events() map[string]func() {
	const id, key = "shard-001", "pool-00000"
	nodes := 0
	return map[string]func(){
		"nothing": func() {},
		"the heartbeat of a Node": func() {
			node := newFleetNode("node-7")
			node.ResourceVersion = f.next()
			f.nodes.change(node)
		},
		"a Node joins, and another leaves": func() {
			nodes++
			node := newFleetNode(fmt.Sprint("new-", nodes))
			f.nodes.change(node)
			f.nodes.remove(node)
		},
		"an instance starts or stops": func() {
			group, _ := f.shards.Groups().Get(id, key)
			group.Instances = slices.Clone(group.Instances)
			if state := &group.Instances[0].State; *state == shard.InstanceRunning {
				*state, group.ActualSize, group.ProviderIDs = shard.InstancePending, 0, nil
			} else {
				*state, group.ActualSize, group.ProviderIDs = shard.InstanceRunning, 1, []string{group.Instances[0].ProviderID}
			}
			f.shards.SetGroup(id, group)
			f.shards.NotifyGroup(id, key)
		},
		"a pool is scaled": func() {
			object, _, _ := f.machinePools.indexer.Indexer.GetByKey(controllertest.Namespace + "/" + key)
			machinePool := object.(*clusterv1.MachinePool).DeepCopy()
			machinePool.ResourceVersion = f.next()
			machinePool.Spec.Replicas = ptr.To(7 - *machinePool.Spec.Replicas)
			f.machinePools.change(machinePool)
		},
		"the configuration of a pool changes": func() {
			object, _, _ := f.pools.indexer.Indexer.GetByKey(controllertest.Namespace + "/" + key)
			pool := object.(*v1beta1.NstanceMachinePool).DeepCopy()
			pool.Generation++
			pool.ResourceVersion = f.next()
			f.pools.change(pool)
		},
		"a shard is lost and comes back": func() {
			for _, reachable := range []bool{false, true} {
				f.shards.Update(func() { f.shards.ByID[id].Reachable = reachable })
				f.shards.NotifyShard(id)
				time.Sleep(window)
			}
		},
	}
}

// In a fleet of 200 shards with 100 groups each, 50,000 Nodes, and 10,000 instances in one of the
// groups, each event costs what it costs with 3 shards and 50 Nodes: objects of caches that are read,
// allocations and allocated bytes. The start of a leader costs as much for each object, and takes at most
// two minutes of a processor.
func TestAnEventOfALargeFleetCostsWhatItCostsInASmallFleet(t *testing.T) {
	groups := tier.Pick(21, 99)
	const start = "the start, for a thousand objects"
	measure := func(size fleetSize) map[string]cost {
		costs := map[string]cost{}
		t.Run(fmt.Sprintf("%d shards", size.shards), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := startFleet(t, size)
				per := func(n int64, objects int) int64 { return n * 1000 / int64(objects) }
				costs[start] = cost{
					per(f.start.visits, f.objects), per(f.start.allocations, f.objects+f.instances), per(f.start.bytes, f.objects+f.instances),
				}
				for name, event := range f.events() {
					costs[name] = f.costOf(event)
				}
				var memory runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&memory)
				t.Logf("%d objects, %d MiB, %s of a processor until the leader has synced all", f.objects, memory.HeapAlloc>>20, f.startTime)
				assert.LessOrEqual(t, f.startTime, 2*time.Minute, "processor time of the start")
			})
		})
		return costs
	}
	small := measure(fleetSize{3, groups, 50, 10})
	big := measure(fleetSize{tier.Pick(30, 200), groups, tier.Pick(3000, 50_000), tier.Pick(1000, 10_000)})
	for name, cost := range big {
		before := small[name]
		t.Logf("%s: %+v, in the small fleet %+v", name, cost, before)
		// Timers and maps of the runtime allocate a little at any time.
		assert.LessOrEqual(t, float64(cost.visits), 1.5*float64(before.visits)+10, "objects visited: %s", name)
		assert.LessOrEqual(t, float64(cost.allocations), 1.5*float64(before.allocations)+500, "allocations: %s", name)
		assert.LessOrEqual(t, float64(cost.bytes), 1.5*float64(before.bytes)+100_000, "allocated bytes: %s", name)
	}
}
