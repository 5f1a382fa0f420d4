// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

func TestPlan(t *testing.T) {
	pod := newPod("requesting", "gpu")
	found, unknown, notYet := groupState{found: true}, groupState{complete: true}, groupState{}
	tests := map[string]struct {
		// By default the Cluster exists, the Pods have synced and the group was found.
		change func(*observation)
		want   step
		reason string
	}{
		"nothing is there":            {func(*observation) {}, nothing, ""},
		"a Pod requestsMachine":       {func(o *observation) { o.pod = inCache(pod) }, createPair, ""},
		"a Pod that is being deleted": {func(o *observation) { o.pod = inCache(controllertest.Deleting(newPod("requesting", "gpu"))) }, nothing, ""},
		"a Pod has its machine": {func(o *observation) {
			o.pod, o.machine, o.nstanceMachine = inCache(pod), newMachine(pod), newNstanceMachine(pod)
		}, nothing, ""},
		"a Pod that is being deleted keeps its machine": {func(o *observation) {
			o.pod, o.machine, o.nstanceMachine = inCache(controllertest.Deleting(newPod("requesting", "gpu"))), newMachine(pod), newNstanceMachine(pod)
		}, nothing, ""},

		"a group that no shard has":     {func(o *observation) { o.pod, o.groups = inCache(pod), unknown }, nothing, reasonUnknownGroup},
		"a group that is not known yet": {func(o *observation) { o.pod, o.groups = inCache(pod), notYet }, nothing, ""},
		"an invalid group":              {func(o *observation) { o.pod = inCache(newPod("requesting", "No--Group")) }, nothing, reasonInvalidAnnotation},
		"a bad annotation that made a machine once": {func(o *observation) {
			o.pod, o.machine, o.nstanceMachine = inCache(newPod("requesting", "")), newMachine(pod), newNstanceMachine(pod)
		}, nothing, ""},
		"a name that is taken": {func(o *observation) { o.pod, o.nameTaken = inCache(pod), true }, nothing, reasonNameTaken},

		"no Cluster yet": {func(o *observation) { o.pod, o.cluster = inCache(pod), nil }, nothing, ""},
		"a Cluster that is being deleted": {func(o *observation) {
			o.pod, o.cluster = inCache(pod), controllertest.Deleting(controllertest.NewCluster())
		}, nothing, ""},
		"a paused Cluster": {func(o *observation) {
			o.pod, o.cluster = inCache(pod), controllertest.PausedCluster(controllertest.NewCluster())
		}, nothing, ""},

		"a crash between the two": {func(o *observation) { o.pod, o.nstanceMachine = inCache(pod), newNstanceMachine(pod) }, createMachine, ""},
		"a crash between the two, and no shard has the group any more": {func(o *observation) {
			o.pod, o.nstanceMachine, o.groups = inCache(pod), newNstanceMachine(pod), unknown
		}, createMachine, ""},
		"a crash between the two, and the Cluster leaves": {func(o *observation) {
			o.pod, o.nstanceMachine, o.cluster = inCache(pod), newNstanceMachine(pod), controllertest.Deleting(controllertest.NewCluster())
		}, nothing, ""},
		"the Machine was deleted, the other follows": {func(o *observation) { o.pod, o.nstanceMachine = inCache(pod), owned(newNstanceMachine(pod)) }, nothing, ""},
		"the Machine was deleted, the other is being deleted": {func(o *observation) {
			o.pod, o.nstanceMachine = inCache(pod), controllertest.Deleting(newNstanceMachine(pod))
		}, nothing, ""},
		"the Machine is being deleted": {func(o *observation) { o.pod, o.machine = inCache(pod), controllertest.Deleting(newMachine(pod)) }, nothing, ""},
		"only the Machine is left":     {func(o *observation) { o.pod, o.machine = inCache(pod), newMachine(pod) }, deleteStrayMachine, ""},

		"the Pod was deleted":                            {func(o *observation) { o.machine, o.nstanceMachine = newMachine(pod), newNstanceMachine(pod) }, deletePair, ""},
		"the Pod was deleted before there was a Machine": {func(o *observation) { o.nstanceMachine = newNstanceMachine(pod) }, deletePair, ""},
		"the Pod was deleted, and the NstanceMachine":    {func(o *observation) { o.machine = newMachine(pod) }, deletePair, ""},
		"the Pod was deleted, and there is no Cluster":   {func(o *observation) { o.machine, o.cluster = newMachine(pod), nil }, deletePair, ""},
		"the Pod was deleted, its Machine is being deleted": {func(o *observation) {
			o.machine, o.nstanceMachine = controllertest.Deleting(newMachine(pod)), newNstanceMachine(pod)
		}, nothing, ""},
		"the Pod was deleted, its NstanceMachine is being deleted": {func(o *observation) { o.nstanceMachine = controllertest.Deleting(newNstanceMachine(pod)) }, nothing, ""},
		"the Pod was deleted, only its Machine is not beingDeleted": {func(o *observation) {
			o.machine, o.nstanceMachine = newMachine(pod), controllertest.Deleting(newNstanceMachine(pod))
		}, deletePair, ""},
		"not all Pods are known": {func(o *observation) {
			o.machine, o.nstanceMachine, o.podsSynced = newMachine(pod), newNstanceMachine(pod), false
		}, nothing, ""},
		"the Pod was deleted, the Cluster is paused": {func(o *observation) {
			o.machine, o.nstanceMachine, o.cluster = newMachine(pod), newNstanceMachine(pod), controllertest.PausedCluster(controllertest.NewCluster())
		}, nothing, ""},
		"the Pod was deleted, its Machine is paused": {func(o *observation) {
			o.machine, o.nstanceMachine = controllertest.Paused(newMachine(pod)), newNstanceMachine(pod)
		}, nothing, ""},
		"the Pod was deleted, its NstanceMachine is paused": {func(o *observation) { o.nstanceMachine = controllertest.Paused(newNstanceMachine(pod)) }, nothing, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			seen := observation{uid: pod.UID, podsSynced: true, cluster: controllertest.NewCluster(), groups: found}
			test.change(&seen)
			got := plan(seen)
			reason := ""
			if got.rejection != nil {
				reason = got.rejection.reason
			}
			if got.step != test.want || reason != test.reason {
				t.Errorf("decided for step %d, rejection %v", got.step, got.rejection)
			}
			if got.step == createPair && got.request.group != "gpu" {
				t.Errorf("orders %+v", got.request)
			}
		})
	}
}

func TestRequestOfAPod(t *testing.T) {
	group, kind := v1beta1.AnnotationOnDemandGroup, v1beta1.AnnotationOnDemandInstanceType
	tests := map[string]struct {
		annotations map[string]string
		want        request
		rejection   string
	}{
		"a group":                 {map[string]string{group: "gpu"}, request{group: "gpu"}, ""},
		"a group and a type":      {map[string]string{group: "gpu", kind: "g5.xlarge"}, request{"gpu", "g5.xlarge"}, ""},
		"the longest type":        {map[string]string{group: "gpu", kind: strings.Repeat("ä", 128)}, request{"gpu", strings.Repeat("ä", 128)}, ""},
		"an empty group":          {map[string]string{group: ""}, request{}, "annotation on-demand.nstance.dev/group must be the id of a group: lower case letters, digits and single hyphens, at most 32 characters; it is \"\""},
		"a group that is none":    {map[string]string{group: "a--b"}, request{}, "annotation on-demand.nstance.dev/group must be the id of a group: lower case letters, digits and single hyphens, at most 32 characters; it is \"a--b\""},
		"an empty type":           {map[string]string{group: "gpu", kind: ""}, request{}, "annotation on-demand.nstance.dev/instance-type must be an instance type: 1 to 128 characters; it is \"\""},
		"a type that is too long": {map[string]string{group: "gpu", kind: strings.Repeat("x", 129)}, request{}, "annotation on-demand.nstance.dev/instance-type must be an instance type: 1 to 128 characters; it is \"" + strings.Repeat("x", 129) + "\""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.Annotations = test.annotations
			got, invalid := requestOf(inCache(pod))
			message := ""
			if invalid != nil {
				message = invalid.message
			}
			if got != test.want || message != test.rejection {
				t.Errorf("got %+v, %s", got, message)
			}
		})
	}
}

func TestAnObjectWithTheNameAndWithoutTheLabelIsForeign(t *testing.T) {
	pod := newPod("requesting", "gpu")
	if foreign(pod.UID, newMachine(pod)) || foreign[clusterv1.Machine](pod.UID, nil) {
		t.Error("the Pod's own machine, or none, is foreign")
	}
	if !foreign(pod.UID, &clusterv1.Machine{}) || !foreign(pod.UID, newMachine(newPod("another", "gpu"))) {
		t.Error("another machine is not foreign")
	}
}

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

	// A machine in the cache is not counted as a claim too.
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
	// A machine that is being deleted still runs.
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

	// The first Pod keeps its slot while other Pods are created and deleted.
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

// A machine may exist after any reply, even while the cache does not show it.
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

	// The Pod was deleted. The cache of Pods is up to date, the cache of machines is not.
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

// Otherwise the permission to create Pods in a namespace would be the permission to create
// machines of every group.
func TestPodsMayRequestMachinesInSomeNamespacesAndOfSomeGroupsOnly(t *testing.T) {
	creates := []string{createsNstanceMachine, createsMachine}
	for name, test := range map[string]struct {
		namespaces, groups sets.Set[string]
		want               []string
		event              string
	}{
		"nowhere":              {event: `Warning OnDemandNotAllowed the Pods of namespace "team" may not request machines (--on-demand-namespaces of the operator)`},
		"everywhere":           {namespaces: sets.New(AllNamespaces), want: creates},
		"in this namespace":    {namespaces: sets.New("team", "other"), want: creates},
		"of this group":        {namespaces: sets.New(AllNamespaces), groups: sets.New("gpu"), want: creates},
		"in another namespace": {namespaces: sets.New("other"), event: `Warning OnDemandNotAllowed the Pods of namespace "team" may not request machines (--on-demand-namespaces of the operator)`},
		"of another group":     {namespaces: sets.New(AllNamespaces), groups: sets.New("cpu"), event: `Warning OnDemandNotAllowed Pods may not request machines of group "gpu"`},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod("requesting", "gpu")
			h := newHarness(t, 0, newShards("gpu", "cpu"), pod)
			h.controller.allowed = allowed{namespaces: test.namespaces, groups: test.groups}
			h.expect(pod, test.want...)
			h.expect(pod)
			if test.event == "" {
				h.ExpectEvents()
			} else {
				h.ExpectEvents(test.event)
			}
		})
	}
}

// A change of the flags deletes no machine.
func TestAMachineThatIsNotAllowedAnyMoreStays(t *testing.T) {
	pod := newPod("requesting", "gpu")
	h := newHarness(t, 0, newShards("gpu"), pod)
	h.expect(pod, createsNstanceMachine, createsMachine)
	h.controller.allowed = allowed{namespaces: sets.New("other")}
	h.expect(pod)
	h.ExpectEvents()
}
