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
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

const minute = time.Minute

// lag shows the caches every change of a machine after some time, in order.
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

// runFor runs the controller in a bubble of its own, in which every object that
// the caches have is new to it.
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

// notifyAll calls the handlers with every object, as informers do at first.
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
		// Each Pod is looked at again and again while the caches do not show what
		// was made for it.
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
				// Cluster API takes the NstanceMachine along; here it is late.
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
		// One Pod after the other is deleted, and another gets a machine.
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
		// Each rejected Pod has got one event, and not one per sync, and each Machine one when
		// it was deleted.
		got := h.Events()
		all := strings.Join(got, "\n")
		if len(got) != pods-limit+pods || strings.Count(all, "OnDemandLimit") != pods-limit || strings.Count(all, "DeletingMachine") != pods {
			t.Errorf("%d events, want %d and %d", len(got), pods-limit, pods)
		}
	})
}

// finish deletes the Pod of a machine, and has the machine go.
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
