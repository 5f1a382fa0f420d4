// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/testing/tier"
)

func TestWhichPodsAChangeEnqueues(t *testing.T) {
	served, waiting, other := newPod("served", "gpu"), newPod("waiting", "gpu"), newPod("other", "cpu")
	elsewhere := newPod("elsewhere", "gpu")
	elsewhere.Namespace = "other"
	recreated := inCache(served)
	recreated.UID = "pod-recreated"
	changed := func(pod *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
		pod = pod.DeepCopy()
		pod.ResourceVersion += "1"
		change(pod)
		return pod
	}
	all := []string{"pod-elsewhere at 0s", "pod-other at 0s", "pod-served at 0s", "pod-waiting at 0s"}
	newer := newMachine(served)
	newer.ResourceVersion = "2"
	newerNstance := newNstanceMachine(served)
	newerNstance.ResourceVersion = "2"
	foreignName := newMachine(served)
	foreignName.Name = "other"

	h := newHarness(t, 0, newShards("gpu"), served, waiting, other, elsewhere)
	h.store("machines", newMachine(served))
	h.store("nstancemachines", newNstanceMachine(served))
	h.show()

	tests := map[string]struct {
		change func(*Controller)
		want   []string
	}{
		"a group changes":           {func(*Controller) { h.Fake.NotifyGroup("a", "gpu") }, []string{"pod-elsewhere at 1s", "pod-waiting at 1s"}},
		"a group that no Pod names": {func(*Controller) { h.Fake.NotifyGroup("a", "tpu") }, nil},
		// The key of all Pods that wait is empty.
		"a shard changes": {func(*Controller) { h.Fake.NotifyShard("a") }, []string{". at 1s"}},
		"the Pods that wait for a shard": {func(c *Controller) {
			_, err := c.sync(h.Ctx, allWaiting)
			require.NoError(t, err)
		}, []string{"pod-elsewhere at 0s", "pod-other at 0s", "pod-waiting at 0s"}},

		"a Pod appears":    {func(c *Controller) { c.podChanged(nil, inCache(waiting)) }, []string{"pod-waiting at 0s"}},
		"a Pod is removed": {func(c *Controller) { c.podChanged(inCache(waiting), nil) }, []string{"pod-waiting at 0s"}},
		"a Pod is being deleted": {func(c *Controller) {
			c.podChanged(inCache(waiting), inCache(changed(waiting, func(p *corev1.Pod) { controllertest.Deleting(p) })))
		}, []string{"pod-waiting at 0s"}},
		"a Pod names another group": {func(c *Controller) {
			c.podChanged(inCache(waiting), inCache(changed(newPod("waiting", "cpu"), func(*corev1.Pod) {})))
		}, []string{"pod-waiting at 0s"}},
		"a Pod's status": {func(c *Controller) {
			c.podChanged(inCache(waiting), inCache(changed(waiting, func(*corev1.Pod) {})))
		}, nil},
		"a resync of Pods": {func(c *Controller) { c.podChanged(inCache(waiting), inCache(waiting)) }, []string{"pod-waiting at 0s"}},
		"a Pod was created again, seen as one change": {func(c *Controller) { c.podChanged(inCache(served), recreated) }, []string{"pod-recreated at 0s", "pod-served at 0s"}},

		"a Machine appears":           {func(c *Controller) { c.machineChanged(nil, newMachine(served)) }, []string{"pod-served at 0s"}},
		"a Machine is removed":        {func(c *Controller) { c.machineChanged(newMachine(served), nil) }, []string{"pod-served at 0s"}},
		"a Machine is being deleted":  {func(c *Controller) { c.machineChanged(newMachine(served), controllertest.Deleting(newer.DeepCopy())) }, []string{"pod-served at 0s"}},
		"a Machine is paused":         {func(c *Controller) { c.machineChanged(newMachine(served), controllertest.Paused(newer.DeepCopy())) }, []string{"pod-served at 0s"}},
		"a resync of Machines":        {func(c *Controller) { c.machineChanged(newMachine(served), newMachine(served)) }, []string{"pod-served at 0s"}},
		"a Machine's status":          {func(c *Controller) { c.machineChanged(newMachine(served), newer) }, nil},
		"a Machine with another name": {func(c *Controller) { c.machineChanged(nil, foreignName) }, nil},

		"an NstanceMachine appears":                                {func(c *Controller) { c.nstanceMachineChanged(nil, newNstanceMachine(served)) }, []string{"pod-served at 0s"}},
		"an NstanceMachine is removed, and another may be created": {func(c *Controller) { c.nstanceMachineChanged(newNstanceMachine(served), nil) }, []string{"pod-served at 0s", "pod-waiting at 0s"}},
		"an NstanceMachine loses its owner": {func(c *Controller) {
			c.nstanceMachineChanged(owned(newNstanceMachine(served)), newerNstance)
		}, []string{"pod-served at 0s"}},
		"an NstanceMachine's status": {func(c *Controller) { c.nstanceMachineChanged(newNstanceMachine(served), newerNstance) }, nil},

		"the Cluster appears": {func(c *Controller) { c.clusterChanged(nil, controllertest.NewCluster()) }, all},
		"the Cluster is unpaused": {func(c *Controller) {
			c.clusterChanged(controllertest.PausedCluster(controllertest.NewCluster()), controllertest.NewCluster())
		}, all},
		"the Cluster's status": {func(c *Controller) { c.clusterChanged(controllertest.NewCluster(), controllertest.NewCluster()) }, nil},
		"another Cluster appears": {func(c *Controller) {
			c.clusterChanged(nil, &clusterv1.Cluster{})
		}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			keys := controllertest.Enqueued(t, &h.controller.queue, func() { test.change(h.controller) })
			if !slices.Equal(keys, test.want) {
				t.Errorf("enqueued %q, want %q", keys, test.want)
			}
		})
	}
}

// A new leader also starts with the machines of Pods that were deleted before.
func TestALeaderStartsWithAllPodsAndMachines(t *testing.T) {
	waiting, served, deleted, half := newPod("waiting", "gpu"), newPod("served", "gpu"), newPod("deleted", "gpu"), newPod("half", "gpu")
	h := newHarness(t, 0, newShards("gpu"), waiting, served)
	h.store("machines", newMachine(served))
	h.store("nstancemachines", newNstanceMachine(served))
	h.store("machines", newMachine(deleted))
	h.store("nstancemachines", newNstanceMachine(half))
	foreign := newMachine(half)
	foreign.Name = "another"
	h.store("machines", foreign)
	h.show()
	assert.ElementsMatch(t, []types.UID{waiting.UID, served.UID, deleted.UID, half.UID}, h.controller.keys())
}

const minute = time.Minute

// lag updates the caches with each change of a machine after a delay, in order.
func (h *harness) lag(by time.Duration) (stop func()) {
	type change struct {
		at    time.Time
		apply func()
	}
	changes := make(chan change, 1<<16)
	h.mu.Lock()
	h.changed = func(object *unstructured.Unstructured, deleted bool) {
		at := time.Now().Add(by)
		switch object.GetKind() {
		case "Machine":
			changes <- change{at, func() {
				show(h, h.Informers.Machines.GetIndexer(), typed[clusterv1.Machine](object), deleted, h.controller.machineChanged)
			}}
		case "NstanceMachine":
			changes <- change{at, func() {
				show(h, h.Informers.Nstance.NstanceMachines().Informer().GetIndexer(), typed[v1beta1.NstanceMachine](object), deleted, h.controller.nstanceMachineChanged)
			}}
		}
	}
	h.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		for change := range changes {
			<-time.After(time.Until(change.at))
			change.apply()
		}
	})
	return func() {
		close(changes)
		wg.Wait()
	}
}

func show[T any](h *harness, indexer cache.Indexer, object *T, deleted bool, changed func(before, after *T)) {
	var before *T
	if known, ok, err := indexer.Get(object); err == nil && ok {
		before = known.(*T)
	}
	var err error
	if deleted {
		err = indexer.Delete(object)
		changed(object, nil)
	} else {
		err = indexer.Update(object)
		changed(before, object)
	}
	assert.NoError(h.t, err)
}

// runFor runs the controller in a separate bubble. All objects in the caches are new to it.
func (h *harness) runFor(t *testing.T, howLong time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		shards, limit := h.Fake, h.controller.limiter.limit
		h.start(limit, shards)
		stop := h.lag(0)
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), quiet(t)), howLong)
		defer cancel()
		h.notifyAll()
		h.controller.Run(ctx)
		stop()
	})
}

// notifyAll calls the handlers with every object, as informers do for their first list.
func (h *harness) notifyAll() {
	for _, pod := range h.controller.pods() {
		h.controller.podChanged(nil, pod)
	}
	for _, object := range h.Informers.Machines.GetStore().List() {
		h.controller.machineChanged(nil, object.(*clusterv1.Machine))
	}
	for _, object := range h.Informers.Nstance.NstanceMachines().Informer().GetStore().List() {
		h.controller.nstanceMachineChanged(nil, object.(*v1beta1.NstanceMachine))
	}
}

func quiet(t *testing.T) klog.Logger {
	return ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
}

func TestManyPodsAtOnceGetAMachineEachFromCachesThatLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const behind = 5 * time.Second
		pods := tier.Pick(200, 1000)
		var requesting []*corev1.Pod
		var want []string
		for i := range pods {
			pod := newPod(fmt.Sprintf("requesting-%d", i), "gpu")
			requesting = append(requesting, pod)
			want = append(want, machineName(pod.UID))
		}
		slices.Sort(want)
		h := newHarness(t, 0, newShards("gpu"), requesting...)
		stop := h.lag(behind)
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), quiet(t)), minute)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { h.controller.Run(ctx) })
		// Each Pod is synced repeatedly while the caches do not show its machine.
		for range 30 {
			h.notifyAll()
			<-time.After(time.Second)
		}
		for resource := range map[string]bool{"machines": true, "nstancemachines": true} {
			if got := h.names(resource); !slices.Equal(got, want) {
				t.Errorf("made %d objects of %s", len(got), resource)
			}
		}
		if len(h.writes) != 2*pods {
			t.Errorf("%d writes, want %d", len(h.writes), 2*pods)
		}
		h.ExpectEvents()

		// All are deleted at once.
		for i, pod := range requesting {
			h.dropPod(pod)
			deleted := inCache(pod)
			require.NoError(h.T, h.Informers.Pods.GetIndexer().Delete(deleted))
			h.controller.podChanged(deleted, nil)
			if i%2 == 0 {
				// Cluster API deletes the NstanceMachine with its Machine; here it is late.
				h.remove("nstancemachines", pod)
			}
		}
		<-ctx.Done()
		wg.Wait()
		stop()
		if got := h.names("machines"); len(got) > 0 {
			t.Errorf("%d Machines are left", len(got))
		}
		if got := h.names("nstancemachines"); len(got) > 0 {
			t.Errorf("%d NstanceMachines are left", len(got))
		}
	})
}

func TestAHundredPodsAtOnceShareTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods, limit = 100, 10
		var requesting []*corev1.Pod
		for i := range pods {
			requesting = append(requesting, newPod(fmt.Sprintf("requesting-%d", i), "gpu"))
		}
		h := newHarness(t, limit, newShards("gpu"), requesting...)
		stop := h.lag(5 * time.Second)
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), quiet(t)))
		var wg sync.WaitGroup
		wg.Go(func() { h.controller.Run(ctx) })
		h.notifyAll()
		most := 0
		// One Pod after the other is deleted, and another Pod gets a machine.
		for range requesting {
			<-time.After(10 * time.Second)
			made := h.names("nstancemachines")
			most = max(most, len(made))
			h.finish(made[0])
		}
		<-time.After(10 * time.Second)
		cancel()
		wg.Wait()
		stop()
		if left := h.names("nstancemachines"); most != limit || len(left) > 0 {
			t.Errorf("at most %d machines at a time, want %d; %q are left", most, limit, left)
		}
		served := 0
		for _, write := range h.writes {
			if strings.HasPrefix(write, "create nstancemachines ") {
				served++
			}
		}
		if served != pods {
			t.Errorf("%d machines for %d Pods", served, pods)
		}
		// Each rejected Pod has one event instead of one for each sync, and each Machine one
		// for its deletion.
		got := h.Events()
		all := strings.Join(got, "\n")
		if len(got) != pods-limit+pods || strings.Count(all, "OnDemandLimit") != pods-limit || strings.Count(all, "DeletingMachine") != pods {
			t.Errorf("%d events, want %d and %d", len(got), pods-limit, pods)
		}
	})
}

// finish deletes the Pod of a machine, and lets the machine be deleted.
func (h *harness) finish(machine string) {
	h.t.Helper()
	uid, _ := podOf(machine)
	cached := h.controller.pod(uid)
	pod := newPod(cached.Name, "gpu")
	h.dropPod(pod)
	require.NoError(h.T, h.Informers.Pods.GetIndexer().Delete(cached))
	h.controller.podChanged(cached, nil)
	h.remove("nstancemachines", pod)
}

// arrivingGroups calls arrive before it says that the groups of a shard are known.
type arrivingGroups struct {
	shard.Groups
	arrive func(id string)
}

func (g arrivingGroups) HasSynced(id string) bool {
	g.arrive(id)
	return g.Groups.HasSynced(id)
}

// A Pod is not rejected for a group that was not known yet when its sync began.
func TestAGroupThatBecomesKnownDuringASyncIsFound(t *testing.T) {
	h := newHarness(t, 0, shardtest.New("a", "b"))
	h.Fake.Update(func() { h.Fake.ByID["b"].Synced = false })
	assert.Equal(t, groupState{}, h.controller.observeGroup("gpu"), "before the groups of shard b are known")
	h.controller.groups = arrivingGroups{Groups: h.controller.groups, arrive: func(id string) {
		if id == "b" {
			h.Fake.SetGroup("b", shard.Group{Key: "gpu"})
			h.Fake.Update(func() { h.Fake.ByID["b"].Synced = true })
		}
	}}
	assert.True(t, h.controller.observeGroup("gpu").found)
	assert.Equal(t, groupState{complete: true}, h.controller.observeGroup("tpu"))
}
