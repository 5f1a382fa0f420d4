// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const create = "create nstancemachinepools main"

// delay is the delay of the tests.
const delay = 5 * time.Second

func TestSyncCreatesThePoolOnce(t *testing.T) {
	h := newHarness(t, map[string]*shardtest.Shard{"us-west-2b": up(static(2)), "us-west-2c": up(), "us-west-2a": up(static(3))})
	writes, _, err := h.SyncStale()
	if err != nil || !slices.Equal(writes, []string{create}) {
		t.Fatalf("wrote %q, error %v", writes, err)
	}
	pool := h.pool("main")
	if pool.Spec.Group != "main" || !slices.Equal(pool.Spec.Shards, []v1beta1.Identifier{"us-west-2a", "us-west-2b"}) || pool.Spec.Template != "" {
		t.Errorf("made %+v", pool.Spec)
	}
	if !slices.Equal(pool.Finalizers, []string{v1beta1.FinalizerMachinePool}) {
		t.Errorf("made with the finalizers %q", pool.Finalizers)
	}

	writes, requeue, err := h.SyncStale()
	if err != nil || len(writes) > 0 || requeue != controller.StaleRetry {
		t.Errorf("before the cache shows it: wrote %q, requeue %s, error %v", writes, requeue, err)
	}
	h.show(shownVersion)
	h.expect()
	if got, want := h.Events(), []string{`Normal Imported group "main" was imported: 5 instances on 2 shards`}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	h.ExpectSeries("nstance_operator_imports_delayed_total 0", "nstance_operator_imports_total 1")
}

// A server that names ever new groups does not fill the API server with pools.
func TestImportsHaveARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))})
		for range importBurst {
			require.True(t, h.controller.limiter.Allow())
		}
		for range 3 {
			writes, requeue, err := h.SyncStale()
			require.NoError(t, err)
			assert.Empty(t, writes)
			assert.Equal(t, importRetry, requeue)
		}
		h.ExpectSeries("nstance_operator_imports_delayed_total 3", "nstance_operator_imports_total 0")
		<-time.After(importInterval)
		h.expect(create)
	})
}

func TestSyncCreatesAsTheOperator(t *testing.T) {
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))})
	var manager string
	h.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		manager = action.(clienttesting.CreateActionImpl).CreateOptions.FieldManager
		return false, nil, nil
	})
	h.expect(create)
	if manager != controllers.FieldManager {
		t.Errorf("created as %q", manager)
	}
}

func TestSyncWaitsForAllShards(t *testing.T) {
	shards := map[string]*shardtest.Shard{"a": up(static(3)), "b": unknown(false, false)}
	h := newHarness(t, shards)
	for _, state := range []*shardtest.Shard{
		unknown(false, false),
		unknown(false, true),
		unknown(true, false),
		unknown(true, false, static(2)),
		unknown(false, true, static(2)),
	} {
		*shards["b"] = *state
		h.expect()
	}
	*shards["b"] = *up(static(2))
	h.expect(create)
	if got := h.pool("main").Spec.Shards; !slices.Equal(got, []v1beta1.Identifier{"a", "b"}) {
		t.Errorf("made of the shards %s", got)
	}
}

// A server that names ever new groups, while another shard is not known, does not fill the memory.
func TestAGroupThatIsGoneDoesNotWait(t *testing.T) {
	a := up(static(3))
	h := newHarness(t, map[string]*shardtest.Shard{"a": a, "b": unknown(false, false)})
	h.expect()
	assert.Equal(t, sets.New("main"), h.controller.waiting.groups)
	h.Fake.Update(func() { clear(a.Groups) })
	h.expect()
	assert.Empty(t, h.controller.waiting.groups)
}

func TestSyncIgnoresAPoolThatAnotherClientCreated(t *testing.T) {
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))})
	h.rejection = apierrors.NewAlreadyExists(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools").GroupResource(), "main")
	h.expect(create)
}

func TestSyncReturnsTheErrorOfACreation(t *testing.T) {
	refusal := errors.New("refused")
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))})
	h.rejection = refusal
	if _, _, err := h.SyncStale(); !errors.Is(err, refusal) || !strings.Contains(err.Error(), "create pool default/main") {
		t.Errorf("got error %v", err)
	}
	h.rejection = nil
	h.expect(create)
}

func TestSyncLeavesPoolsAlone(t *testing.T) {
	for name, objects := range map[string][]runtime.Object{
		"the group's pool of another name": {newPool("other", "main", "a")},
		"a pool that is being deleted":     {controllertest.Deleting(newPool("main", "main", "a"))},
		"what a former pool has left":      {controllertest.NewShardGroup(newPool("main", "main", "a"), "a")},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))}, objects...)
			h.expect()
			if got := h.Events(); got != nil {
				t.Errorf("recorded %q", got)
			}
		})
	}
}

func TestSyncWarns(t *testing.T) {
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1)), "b": up(static(1))}, newPool("other", "main", "a"))
	h.expect()
	if got, want := h.Events(), []string{`Warning ShardNotListed group "main" is also on shards that spec.shards does not name: b`}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}

	h = newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))}, newPool("main", "workers", "a"))
	h.expect()
	if got, want := h.Events(), []string{`Warning NameTaken group "main" on the shards gets no pool, because the pool of that name has group "workers"`}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestSyncWaitsForMachinePoolAndCluster(t *testing.T) {
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))})
	elsewhere := controllertest.Deleting(controllertest.NewMachinePool("elsewhere", "main"))
	elsewhere.Spec.Template.Spec.InfrastructureRef.Kind = "DockerMachinePool"
	h.Put(h.Informers.MachinePools, elsewhere)
	h.Put(h.Informers.MachinePools, controllertest.Deleting(controllertest.NewMachinePool("another", "workers")))
	h.Put(h.Informers.Clusters, controllertest.PausedCluster(anotherCluster()))

	// Cluster API deletes the pool that a MachinePool refers to, even if their names differ.
	machinePool := controllertest.Deleting(controllertest.NewMachinePool("other", "main"))
	h.Put(h.Informers.MachinePools, machinePool)
	h.expect()
	require.NoError(t, h.Informers.MachinePools.GetIndexer().Delete(machinePool))
	h.Put(h.Informers.Clusters, controllertest.PausedCluster(controllertest.NewCluster()))
	h.expect()
	h.Put(h.Informers.Clusters, controllertest.Deleting(controllertest.NewCluster()))
	h.expect()
	h.Put(h.Informers.Clusters, controllertest.NewCluster())
	h.Put(h.Informers.MachinePools, controllertest.NewMachinePool("other", "main"))
	h.expect(create)
}

func TestSyncIgnoresGroupsWithInvalidNamesAndLogsThemOnce(t *testing.T) {
	odd := shard.Group{Key: "No--Key"}
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(odd)})
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx := klog.NewContext(t.Context(), logger)
	for range 3 {
		if requeue, err := h.controller.sync(ctx, cache.NewObjectName(namespace, odd.Key)); err != nil || requeue != 0 {
			t.Errorf("requeue %s, error %v", requeue, err)
		}
	}
	if writes := h.Writes(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
	if log := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); strings.Count(log, "Ignored") != 1 {
		t.Errorf("logged\n%s", log)
	}
}

func TestGroupsOfServersAreImported(t *testing.T) {
	options := func(id string, size int) servertest.Options {
		return servertest.Options{
			Shard:  id,
			Groups: fmt.Sprintf(`{"default": {"main": {"template": "worker", "size": %d}}}`, size),
		}
	}
	servers := shardtest.StartServers(t, options("a", 3), options("b", 2))
	a := servers.ByID["a"]
	a.Kill()

	pools := watchPools(t, servers)
	runtest.Eventually(t, "shard a is unreachable and shard b is reachable", func() bool {
		_, lost := servers.Groups.Reachable("a")
		up, _ := servers.Groups.Reachable("b")
		return up && shard.IsUnreachable(lost)
	})
	restarted := options("a", 3)
	restarted.Addr, restarted.Authority = a.Addr, servers.Authority
	a = servertest.Start(t, restarted)
	// A pool that was created before shard a was known would be only on shard b.
	pools.expect("create main on [a b]")

	_, err := a.Operator("default").UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: "extra", Config: &nstancev1.GroupConfig{Template: "worker", Size: 1},
	})
	require.NoError(t, err)
	pools.expect("create extra on [a] of worker")

	// The servers' configuration still has the group.
	noFinalizer := []byte(`[{"op": "remove", "path": "/metadata/finalizers"}]`)
	client := pools.InfrastructureV1beta1().NstanceMachinePools(namespace)
	require.NoError(t, client.Delete(t.Context(), "main", metav1.DeleteOptions{}))
	_, err = client.Patch(t.Context(), "main", types.JSONPatchType, noFinalizer, metav1.PatchOptions{})
	require.NoError(t, err)
	pools.expect("main was deleted")
	pools.expect("create main on [a b]")
}

// poolWatch is a running controller, with the pools that it creates.
type poolWatch struct {
	*controllertest.Harness
	changes chan string
}

func watchPools(t *testing.T, servers *shardtest.Servers) *poolWatch {
	t.Helper()
	w := &poolWatch{Harness: controllertest.NewHarness(t, shardtest.New()), changes: make(chan string, 10)}
	w.UseServers(servers)
	c, err := New(w.Dependencies, Options{Delay: delay})
	require.NoError(t, err)
	pools := w.Informers.Nstance.NstanceMachinePools().Informer()
	_, err = pools.AddEventHandler(controller.OnChange(w.changed))
	require.NoError(t, err)
	runtest.Start(t, pools.RunWithContext, w.Informers.Nstance.NstanceShardGroups().Informer().RunWithContext, c.Run)
	servers.Connect()
	return w
}

func (w *poolWatch) changed(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case before == nil:
		w.changes <- describe(decision{create: &after.Spec})
	case after == nil:
		w.changes <- before.Name + " was deleted"
	}
}

// expect waits for the next pool that is created or deleted.
func (w *poolWatch) expect(want string) {
	w.T.Helper()
	select {
	case got := <-w.changes:
		require.Equal(w.T, want, got)
	case <-time.After(runtest.Timeout):
		w.T.Fatalf("after %s no change, want %q", runtest.Timeout, want)
	}
}

func TestHandlersEnqueueGroups(t *testing.T) {
	// The key of all groups has a namespace and no name.
	all := []string{"default at 0s"}
	// The key of changed shards.
	settled := []string{"shards at 5s"}
	pool := newPool("main", "main", "a")
	tests := map[string]struct {
		change func(*Controller)
		want   []string
	}{
		"a cached group changes": {func(c *Controller) { c.groupChanged("a", "main") }, []string{"main at 5s"}},
		"a shard changes": {func(c *Controller) {
			c.shardChanged("a")
		}, settled},
		"a shard was removed from the configuration": {func(c *Controller) { c.shardChanged("removed") }, settled},

		"a pool is added": {func(c *Controller) { c.poolChanged(nil, newPool("other", "main", "a")) }, []string{"main at 5s"}},
		"a pool's spec changes": {func(c *Controller) {
			after := pool.DeepCopy()
			after.Generation++
			c.poolChanged(pool, after)
		}, []string{"main at 5s"}},
		"a pool's status changes": {func(c *Controller) { c.poolChanged(pool, pool.DeepCopy()) }, nil},
		"a pool is deleted, which frees its group and its name": {func(c *Controller) {
			c.poolChanged(newPool("workers", "main", "a"), nil)
		}, []string{"main at 5s", "workers at 5s"}},

		"a shard group is deleted": {func(c *Controller) { c.shardGroupChanged(controllertest.NewShardGroup(pool, "a"), nil) }, []string{"main at 5s"}},
		"a shard group is added":   {func(c *Controller) { c.shardGroupChanged(nil, controllertest.NewShardGroup(pool, "a")) }, nil},
		"a shard group is resynced": {func(c *Controller) {
			c.shardGroupChanged(controllertest.NewShardGroup(pool, "a"), controllertest.NewShardGroup(pool, "a"))
		}, nil},
		"a MachinePool that a group waits for is deleted": {func(c *Controller) {
			c.machinePoolChanged(controllertest.Deleting(controllertest.NewMachinePool("other", "main")), nil)
		}, []string{"main at 0s"}},
		"a MachinePool that is being deleted refers to another pool": {func(c *Controller) {
			c.machinePoolChanged(controllertest.Deleting(controllertest.NewMachinePool("other", "main")), controllertest.Deleting(controllertest.NewMachinePool("other", "another")))
		}, []string{"main at 0s"}},
		"a MachinePool is being deleted": {func(c *Controller) {
			c.machinePoolChanged(controllertest.NewMachinePool("main", "main"), controllertest.Deleting(controllertest.NewMachinePool("main", "main")))
			c.machinePoolChanged(controllertest.Deleting(controllertest.NewMachinePool("main", "main")), controllertest.Deleting(controllertest.NewMachinePool("main", "main")))
		}, nil},
		"a MachinePool that no group waits for": {func(c *Controller) {
			c.machinePoolChanged(nil, controllertest.NewMachinePool("main", "main"))
			c.machinePoolChanged(controllertest.NewMachinePool("main", "main"), controllertest.NewMachinePool("main", "main"))
			c.machinePoolChanged(controllertest.NewMachinePool("main", "main"), nil)
		}, nil},

		"the Cluster is no longer paused": {func(c *Controller) {
			c.clusterChanged(controllertest.PausedCluster(controllertest.NewCluster()), controllertest.NewCluster())
		}, all},
		"the Cluster was deleted": {func(c *Controller) { c.clusterChanged(controllertest.Deleting(controllertest.NewCluster()), nil) }, all},
		"the Cluster blocks imports": {func(c *Controller) {
			c.clusterChanged(nil, controllertest.NewCluster())
			c.clusterChanged(controllertest.NewCluster(), controllertest.PausedCluster(controllertest.NewCluster()))
			c.clusterChanged(controllertest.NewCluster(), controllertest.Deleting(controllertest.NewCluster()))
			c.clusterChanged(controllertest.NewCluster(), controllertest.NewCluster())
			c.clusterChanged(controllertest.PausedCluster(controllertest.NewCluster()), controllertest.Deleting(controllertest.NewCluster()))
		}, nil},
		"another Cluster": {func(c *Controller) {
			c.clusterChanged(controllertest.PausedCluster(anotherCluster()), anotherCluster())
		}, nil},
	}
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1)), "b": unknown(false, false, static(1), shard.Group{Key: "workers"})})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { test.change(h.controller) })
			if !slices.Equal(enqueued, test.want) {
				t.Errorf("enqueued %q, want %q", enqueued, test.want)
			}
		})
	}
}

// countingGroups counts how often the groups of a shard are listed, and groups are read.
type countingGroups struct {
	shard.Groups
	mu     sync.Mutex
	listed int
	// got is the number of groups that were read one by one.
	got int
}

func (g *countingGroups) Get(id, key string) (shard.Group, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.got++
	return g.Groups.Get(id, key)
}

func (g *countingGroups) List(id string) []shard.Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listed++
	return g.Groups.List(id)
}

// All shards connect when an operator starts. The groups of a shard are not listed once for each
// shard.
func TestChangesOfManyShardsListTheirGroupsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 100
		shards := map[string]*shardtest.Shard{}
		for n := range count {
			shards[fmt.Sprintf("shard-%d", n)] = up(static(1))
		}
		h := newHarness(t, shards)
		groups := &countingGroups{Groups: h.controller.groups}
		h.controller.groups = groups
		ctx, cancel := context.WithTimeout(h.Ctx, time.Minute)
		defer cancel()
		go h.controller.Run(ctx)
		synctest.Wait()
		listed := groups.listed
		assert.Equal(t, count, listed, "by a new leader")
		for id := range shards {
			h.Fake.NotifyShard(id)
		}
		time.Sleep(2 * delay)
		synctest.Wait()
		assert.Equal(t, 2*count, groups.listed)

		// While one of them cannot be reached, nothing can be imported.
		setReachable := func(reachable bool) {
			h.Fake.Update(func() { h.Fake.ByID["shard-7"].Reachable = reachable })
			for id := range shards {
				h.Fake.NotifyShard(id)
			}
			time.Sleep(2 * delay)
			synctest.Wait()
		}
		setReachable(false)
		assert.Equal(t, 2*count, groups.listed)
		setReachable(true)
		assert.Equal(t, 3*count, groups.listed)
	})
}

// Of many shards with many groups, one is lost and comes back. Only its groups, and groups that have
// changed meanwhile, are synced, and only if no pool has them on the shard.
func TestAChangeOfOneShardVisitsItsGroupsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shards := map[string]*shardtest.Shard{}
		var objects []runtime.Object
		for n := range 50 {
			id := fmt.Sprintf("shard-%d", n)
			shards[id] = up()
			for m := range 20 {
				group := static(1)
				group.Key = fmt.Sprintf("group-%d-%d", n, m)
				shards[id].Groups[group.Key] = group
				objects = append(objects, newPool(group.Key, v1beta1.Identifier(group.Key), v1beta1.Identifier(id)))
			}
		}
		h := newHarness(t, shards, objects...)
		groups := &countingGroups{Groups: h.controller.groups}
		h.controller.groups = groups
		ctx, cancel := context.WithTimeout(h.Ctx, time.Hour)
		defer cancel()
		go h.controller.Run(ctx)
		time.Sleep(2 * delay)
		synctest.Wait()
		assert.Empty(t, h.Writes(), "of groups that have their pools")

		groups.listed, groups.got = 0, 0
		change := func(reachable bool) {
			h.Fake.Update(func() { h.Fake.ByID["shard-7"].Reachable = reachable })
			h.Fake.NotifyShard("shard-7")
			time.Sleep(2 * delay)
			synctest.Wait()
		}
		change(false)
		added := static(1)
		added.Key = "added"
		h.Fake.SetGroup("shard-3", added)
		h.Fake.NotifyGroup("shard-3", added.Key)
		time.Sleep(2 * delay)
		synctest.Wait()
		assert.Empty(t, h.Writes(), "while a shard is not known")
		change(true)
		assert.Equal(t, []string{"create nstancemachinepools added"}, h.Writes(), "of the group that has waited")
		assert.Equal(t, 1, groups.listed, "listed shards")
		assert.LessOrEqual(t, groups.got, 5, "groups that were read")
	})
}

// The handlers of a standby are called for as long as another process leads.
func TestStandbyCollectsNoKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, map[string]*shardtest.Shard{"a": shardtest.NewShard()})
		h.Fake.SetGroup("a", dynamic("standard"))
		// A sync of a group with an invalid name stores the name.
		const former = "Former_Group"
		h.Fake.NotifyGroup("a", former)
		h.controller.machinePoolChanged(controllertest.Deleting(controllertest.NewMachinePool("former", "former")), nil)
		assert.Zero(t, h.controller.queue.Len(), "keys of a standby")

		ctx, cancel := context.WithTimeout(h.Ctx, time.Minute)
		defer cancel()
		h.controller.Run(ctx)
		_, synced := h.controller.invalidNames.Load(former)
		assert.False(t, synced, "a dropped key was synced")
		assert.NotNil(t, h.pool("main"), "a new leader syncs every group")
	})
}
