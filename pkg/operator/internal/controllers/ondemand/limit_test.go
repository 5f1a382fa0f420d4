// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

const limitEvent = `Warning OnDemandLimit the Pods of namespace "team" have as many on-demand machines of group "gpu" as the limit allows: 1`

func TestLimiter(t *testing.T) {
	machines := cache.NewIndexer(cache.MetaNamespaceKeyFunc, slotIndexers)
	l := newLimiter(2, machines)
	gpu, cpu, elsewhere := slot{"team", "gpu"}, slot{"team", "cpu"}, slot{"other", "gpu"}
	claim := func(pod types.UID, of slot, want bool) {
		t.Helper()
		if got := l.claim(pod, of); got != want {
			t.Errorf("claim of %s for %s: %t", of, pod, got)
		}
	}
	claim("pod-a", gpu, true)
	claim("pod-a", gpu, true)
	claim("pod-b", gpu, true)
	claim("pod-a", gpu, true)
	claim("pod-c", gpu, false)
	claim("pod-c", cpu, true)
	claim("pod-d", elsewhere, true)

	// What has come into the cache counts there, and not twice.
	for _, name := range []string{"a", "b"} {
		require.NoError(t, machines.Add(newNstanceMachine(newPod(name, "gpu"))))
	}
	claim("pod-e", cpu, true)
	claim("pod-f", gpu, false)
	for _, pod := range []types.UID{"pod-a", "pod-b"} {
		if of, ok := l.release(pod); !ok || of != gpu {
			t.Errorf("released %s, %t", of, ok)
		}
	}
	claim("pod-f", gpu, false)
	// One that is being deleted still runs.
	require.NoError(t, machines.Update(controllertest.Deleting(newNstanceMachine(newPod("a", "gpu")))))
	claim("pod-f", gpu, false)
	require.NoError(t, machines.Delete(newNstanceMachine(newPod("a", "gpu"))))
	claim("pod-f", gpu, true)
	claim("pod-g", gpu, false)
	if _, ok := l.release("pod-g"); ok {
		t.Error("released what was not claimed")
	}

	unlimited := newLimiter(0, machines)
	for _, name := range strings.Split("abcdefgh", "") {
		if !unlimited.claim(types.UID(name), gpu) || len(unlimited.claimed) > 0 {
			t.Error("0 is a limit")
		}
	}
}

func TestSyncKeepsTheLimit(t *testing.T) {
	first, second, third := newPod("first", "gpu"), newPod("second", "gpu"), newPod("third", "gpu")
	elsewhere := newPod("elsewhere", "gpu")
	elsewhere.Namespace = "other"
	h := newHarness(t, 1, newShards("gpu", "cpu"), first, second, third, elsewhere, newPod("another", "cpu"))
	h.expect(first, createsNstanceMachine, createsMachine)
	for range 3 {
		h.expect(second)
		h.expect(third)
	}
	h.ExpectEvents(limitEvent, limitEvent)
	h.ExpectSeries("nstance_operator_on_demand_limit_hits_total 6")
	h.expect(elsewhere, createsNstanceMachine, createsMachine)
	h.expect(newPod("another", "cpu"), createsNstanceMachine, createsMachine)

	// Other Pods come and go while the first has its place.
	h.dropPod(third)
	h.expect(third)
	h.dropPod(first)
	h.expect(first, deletesMachine)
	h.expect(second)
	h.remove("nstancemachines", first)
	h.expect(second, createsNstanceMachine, createsMachine)
	h.ExpectEvents("Normal DeletingMachine its Pod team/first was deleted or has finished")
}

func TestAClaimIsDroppedWithThePod(t *testing.T) {
	first, second := newPod("first", "gpu"), newPod("second", "gpu")
	h := newHarness(t, 1, newShards("gpu"), first, second)
	h.refused["create nstancemachines on-demand-pod-first"] = apierrors.NewInternalError(apierrors.NewBadRequest("no"))
	if _, _, err := h.sync(first.UID); err == nil {
		t.Error("made")
	}
	h.expect(second)
	h.ExpectEvents(limitEvent)
	h.dropPod(first)
	keys := controllertest.Enqueued(t, &h.controller.queue, func() { h.expect(first) })
	if want := []string{"pod-second at 0s"}; !slices.Equal(keys, want) {
		t.Errorf("enqueued %q, want %q", keys, want)
	}
	h.expect(second, createsNstanceMachine, createsMachine)
}

// A machine may exist after any reply, and while the cache does not show it.
func TestAClaimIsKeptUntilTheCacheShowsTheMachine(t *testing.T) {
	first, second := newPod("first", "gpu"), newPod("second", "gpu")
	h := newHarness(t, 1, newShards("gpu"), first, second)
	lost, refused := "create nstancemachines on-demand-pod-first", "create machines on-demand-pod-first"
	h.lost[lost] = apierrors.NewInternalError(http.ErrHandlerTimeout)
	h.refused[refused] = h.lost[lost]
	for range 2 {
		keys := controllertest.Enqueued(t, &h.controller.queue, func() {
			if _, _, err := h.sync(first.UID); !apierrors.IsInternalError(err) {
				t.Errorf("got error %v", err)
			}
		})
		if len(keys) > 0 {
			t.Errorf("enqueued %q", keys)
		}
		delete(h.lost, lost)
	}

	// The Pod is deleted. The cache of Pods is up to date, that of machines is not.
	require.NoError(h.T, h.Informers.Pods.GetIndexer().Delete(inCache(first)))
	h.dropPod(first)
	if writes, requeue, err := h.sync(first.UID); err != nil || len(writes) > 0 || requeue != staleRetry {
		t.Errorf("wrote %q, requeue %s, error %v", writes, requeue, err)
	}
	if writes, _, err := h.sync(second.UID); err != nil || len(writes) > 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.expect(first, "delete nstancemachines {}")
	h.expect(first)
	h.expect(second, createsNstanceMachine, createsMachine)
}

func TestSlotOfAMachine(t *testing.T) {
	machine := newNstanceMachine(newPod("x", "gpu"))
	if got := slotOf(machine); got != (slot{"team", "gpu"}) {
		t.Errorf("got %s", got)
	}
	machine.Labels = nil
	values, err := slotIndexers[bySlot](machine)
	if got := slotOf(machine); got != (slot{}) || err != nil || len(values) > 0 {
		t.Errorf("a machine that was not made for a Pod has slot %s, and is indexed by %q, %v", got, values, err)
	}
}
