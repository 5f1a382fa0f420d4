// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

const getM = "get m on a"

// listed returns the instance of the pool member "m".
func listed(state shard.InstanceState) shard.Instance {
	return shard.Instance{ID: "m", State: state, ProviderID: "provider-m"}
}

// No Machine owns it, and the shard is not queried because it lists the instance.
func TestAPoolMemberFollowsTheListOfItsShard(t *testing.T) {
	h := newHarness(t, newShards("a"), newPoolMember("m"))
	h.list(shard.Instance{ID: "m", State: shard.InstancePending})
	h.Expect(applyStatusM)
	h.expectReady("False Provisioning: instance m is pending")
	h.expectCondition(v1beta1.ConditionInstanceCreated, "True InstanceCreated: ")
	if got := h.nstanceMachine("m").Status; got.Shard != "a" || got.InstanceID != "m" || got.RequestID != "" || got.Initialization.Provisioned != nil {
		t.Errorf("the status is %+v", got)
	}
	if requeue := h.Expect(); requeue != 0 {
		t.Errorf("syncs again in %s, want no delay", requeue)
	}

	h.list(shard.Instance{ID: "m", State: shard.InstanceRunning})
	h.Expect(applyStatusM)
	h.expectReady("False Provisioning: instance m has no provider id")
	h.list(listed(shard.InstanceRunning))
	h.Expect(applyM, applyStatusM)
	h.expectReady("True Ready: ")
	got := h.nstanceMachine("m")
	if got.Spec.ProviderID != "provider-m" || !ptr.Deref(got.Status.Initialization.Provisioned, false) || !ptr.Deref(got.Status.Ready, false) {
		t.Errorf("it has provider id %q and status %+v", got.Spec.ProviderID, got.Status)
	}
	h.Expect()

	h.addNode(newNode("n", "aws:///zone/provider-m"))
	h.Expect(applyM, applyStatusM)
	if got := h.nstanceMachine("m"); got.Spec.ProviderID != "aws:///zone/provider-m" || len(got.Status.Addresses) != 2 {
		t.Errorf("it has provider id %q and addresses %v", got.Spec.ProviderID, got.Status.Addresses)
	}

	h.list(listed(shard.InstanceFailed))
	h.Expect(applyStatusM)
	h.expectReady("False InstanceFailed: instance m is failed")
	h.list(listed(shard.InstanceTerminating))
	h.Expect(applyStatusM)
	h.expectReady("False ServerDeleted: instance m is terminating")
	if got, want := h.Events(), []string{"Warning InstanceFailed instance m is failed", "Warning ServerDeleted instance m is terminating"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	assert.Empty(t, h.controller.placements.counts, "it is counted in placements")
}

func TestAPoolMemberThatIsNotListedIsQueried(t *testing.T) {
	for name, test := range map[string]struct {
		owned bool
		then  string
	}{
		"and has a Machine": {true, `DELETE machines/m {"kind":"DeleteOptions","apiVersion":"cluster.x-k8s.io/v1beta2","preconditions":{"uid":"uid-of-machine-m"}}`},
		"and has none":      {false, deleteM},
	} {
		t.Run(name, func(t *testing.T) {
			nstanceMachine := runningPoolMember("m")
			if test.owned {
				owned(nstanceMachine)
			}
			h := newHarness(t, newShards("a"), nstanceMachine)
			h.list()
			h.shardA().Instances["m"] = listed(shard.InstanceTerminating)
			// The query is repeated until the instance is deleted.
			if requeue := h.Expect(getM, applyStatusM); requeue != queryBackoff.Duration {
				t.Errorf("queries again in %s", requeue)
			}
			h.expectReady("False ServerDeleted: instance m is terminating")
			h.Expect()
			h.Advance(time.Minute)
			h.Expect(getM)
			delete(h.shardA().Instances, "m")
			h.Advance(time.Minute)
			h.Expect(getM, applyStatusM)
			h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: the shard does not have the instance any more")
			h.Expect(test.then)
		})
	}
}

// An instance that is missing in a list need not have been deleted.
func TestARunningPoolMemberThatIsNotListedStays(t *testing.T) {
	h := newHarness(t, newShards("a"), runningPoolMember("m"))
	h.list()
	h.shardA().Instances["m"] = listed(shard.InstanceRunning)
	for _, delay := range []time.Duration{1, 2, 4} {
		if requeue := h.Expect(getM); requeue != delay*time.Second {
			t.Errorf("queries again in %s, want %ds", requeue, delay)
		}
		h.Advance(time.Minute)
	}
	h.expectReady("True Ready: ")
	h.list(listed(shard.InstanceRunning))
	h.Expect()

	// Nor if the shard is disconnected, or its groups are not known.
	h.list()
	h.shardA().Reachable = false
	h.Expect()
	delete(h.shardA().Groups, "workers")
	h.shardA().Synced = false
	h.Expect()
	h.shardA().Reachable = true
	h.Expect()
	h.expectReady("True Ready: ")
}

// A shard without the group lists no instances.
func TestAPoolMemberOfADeletedGroup(t *testing.T) {
	h := newHarness(t, newShards("a"), runningPoolMember("m"))
	delete(h.shardA().Groups, "workers")
	h.Expect(getM, applyStatusM)
	h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: the shard does not have the instance any more")
}

// Cluster API creates the Machine again.
func TestAPoolMemberSurvivesItsMachine(t *testing.T) {
	h := newHarness(t, newShards("a"), owned(runningPoolMember("m")))
	h.list(listed(shard.InstanceRunning))
	h.hideMachine()
	h.Expect()
}

func TestListedPoolMembersCostNoCalls(t *testing.T) {
	const size = 500
	var all []*v1beta1.NstanceMachine
	var instances []shard.Instance
	for i := range size {
		name := fmt.Sprintf("i-%03d", i)
		all = append(all, owned(runningPoolMember(name)))
		instances = append(instances, shard.Instance{ID: name, State: shard.InstanceRunning, ProviderID: "provider-" + name})
	}
	h := newHarness(t, newShards("a"), all...)
	h.Ctx = klog.NewContext(t.Context(), klog.Logger{})
	syncAll := func() {
		for _, nstanceMachine := range all {
			_, err := h.controller.sync(h.Ctx, cache.NewObjectName(controllertest.Namespace, nstanceMachine.Name))
			require.NoError(t, err)
		}
	}
	h.list(instances...)
	syncAll()
	// After a reconnection, and after a restart.
	h.shardA().Session++
	syncAll()
	h.restart()
	syncAll()
	if calls, writes := h.Fake.Calls(), h.Writes(); len(calls)+len(writes)+len(h.CAPI.Changed) != 0 {
		t.Errorf("did %d calls and %d writes", len(calls), len(writes))
	}
}

func TestWhichPoolMembersAreUpToDate(t *testing.T) {
	changed := func(change func(*v1beta1.NstanceMachine)) *v1beta1.NstanceMachine {
		nstanceMachine := runningPoolMember("m")
		change(nstanceMachine)
		return nstanceMachine
	}
	not := func(reason, message string) *v1beta1.NstanceMachine {
		return changed(func(m *v1beta1.NstanceMachine) {
			setCondition(m, v1beta1.ConditionReady, metav1.ConditionFalse, reason, message)
		})
	}
	is := func(state shard.InstanceState) *shard.Instance { return ptr.To(listed(state)) }
	for name, test := range map[string]struct {
		nstanceMachine *v1beta1.NstanceMachine
		listed         *shard.Instance
		missing        bool
		want           bool
	}{
		"a new one":                                  {newPoolMember("m"), is(shard.InstancePending), false, false},
		"it runs":                                    {runningPoolMember("m"), is(shard.InstanceRunning), false, true},
		"it runs by another id":                      {runningPoolMember("m"), &shard.Instance{ID: "m", State: shard.InstanceRunning, ProviderID: "other"}, false, false},
		"it runs and was pending":                    {not(v1beta1.ReasonProvisioning, "instance m is pending"), is(shard.InstanceRunning), false, false},
		"it has failed":                              {runningPoolMember("m"), is(shard.InstanceFailed), false, false},
		"it had failed":                              {not(v1beta1.ReasonInstanceFailed, "instance m is failed"), is(shard.InstanceFailed), false, true},
		"it had stopped before":                      {not(v1beta1.ReasonInstanceFailed, "instance m is stopped"), is(shard.InstanceFailed), false, false},
		"it is being deleted by the shard":           {runningPoolMember("m"), is(shard.InstanceTerminating), false, false},
		"it is being deleted, with a notice":         {not(v1beta1.ReasonServerDeleted, "the shard is deleting the instance: spot"), is(shard.InstanceTerminating), false, true},
		"it is missing":                              {runningPoolMember("m"), nil, true, false},
		"it is missing and was deleted by the shard": {withServerDeleted(runningPoolMember("m")), nil, true, true},
		"it is missing and being deleted":            {deleting(runningPoolMember("m")), nil, true, true},
		"it is being deleted":                        {deleting(runningPoolMember("m")), is(shard.InstanceTerminating), false, true},
		"the shard lists nothing":                    {runningPoolMember("m"), nil, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			setCondition(test.nstanceMachine, "Other", metav1.ConditionTrue, "Other", "")
			if got := upToDate(test.nstanceMachine, test.listed, test.missing); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

func TestTheFinalizerOfAPoolMemberIsAddedAgain(t *testing.T) {
	nstanceMachine := newPoolMember("m")
	nstanceMachine.Finalizers = nil
	h := newHarness(t, newShards("a"), nstanceMachine)
	h.list(shard.Instance{ID: "m", State: shard.InstancePending})
	h.Expect(applyM, applyStatusM)
	if !hasFinalizer(h.nstanceMachine("m")) {
		t.Error("it has no finalizer")
	}

	// Without a shard there is no instance.
	nstanceMachine = withoutShard(newPoolMember("m"))
	nstanceMachine.Finalizers = nil
	h = newHarness(t, newShards("a"), nstanceMachine)
	h.Expect(applyStatusM)
	h.expectReady(`False UnknownShard: shard "" is not configured`)
}

// newPoolHarness returns a harness with a pool of running instances on shard a, and the ids of
// the instances. The controller receives deletion notices.
func newPoolHarness(t *testing.T, size int32) (h *serverHarness, ids []string) {
	t.Helper()
	h = newServerHarness(t, "a")
	h.Notices, h.Clock = h.servers.Notices, clock.RealClock{}
	h.restart()
	h.addPool(size, size, 0)
	h.servers.Resize("a", size)
	h.eventually("the instances are listed", func() bool { ids = h.listed(); return len(ids) == int(size) })
	for _, id := range ids {
		h.add(owned(newPoolMember(id)))
	}
	h.eventually("all are ready", func() bool {
		return !slices.ContainsFunc(ids, func(id string) bool {
			return conditionOf(h.nstanceMachine(id), v1beta1.ConditionReady) != "True Ready: "
		})
	})
	return h, ids
}

// listed returns the ids of the instances that the shard lists and is not deleting.
func (h *serverHarness) listed() []string {
	group, _ := h.Groups.Get("a", "workers")
	var ids []string
	for _, instance := range group.Instances {
		if instance.State != shard.InstanceTerminating {
			ids = append(ids, instance.ID)
		}
	}
	return ids
}

func hasProviderID(id string) func(corev1.Node) bool {
	return func(node corev1.Node) bool { return node.Spec.ProviderID == id }
}

func TestManagedInstancesRunWithoutACall(t *testing.T) {
	h, ids := newPoolHarness(t, 3)
	server := h.servers.ByID["a"]
	if calls := server.Calls("GetInstanceStatus", "CreateInstance", "DeleteInstance"); len(calls) != 0 {
		t.Errorf("there were %d calls", len(calls))
	}
	nodes, err := server.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, id := range ids {
		got := h.nstanceMachine(id).Spec.ProviderID
		if got == "" || !slices.ContainsFunc(nodes.Items, hasProviderID(got)) {
			t.Errorf("pool member %s has provider id %q", id, got)
		}
	}
}

func TestAManagedInstanceIsReplaced(t *testing.T) {
	h, ids := newPoolHarness(t, 2)
	h.delete(ids[0])
	h.eventually("it is deleted", func() bool { return h.nstanceMachine(ids[0]) == nil })
	h.eventually("it is replaced", func() bool {
		now := h.listed()
		return len(now) == 2 && slices.Contains(now, ids[1]) && !slices.Contains(now, ids[0])
	})
}

// The NstanceMachine is deleted before pool and shard have lowered their sizes. Its
// instance waits for both: otherwise another instance would be deleted too.
func TestADeletionCandidateIsNotReplaced(t *testing.T) {
	h, ids := newPoolHarness(t, 3)
	candidate := ids[1]
	h.scale(2)
	h.delete(candidate)
	ready := func() string { return conditionOf(h.nstanceMachine(candidate), v1beta1.ConditionReady) }
	h.eventually("it waits for the pool", func() bool {
		return strings.Contains(ready(), "the pool is selecting which of 3 instances are deleted")
	})
	h.Put(h.Informers.MachinePools, newMachinePool(2))
	h.resize(2, candidate)
	h.eventually("it waits for the shard", func() bool { return strings.Contains(ready(), notConfirmed) })
	if calls := h.servers.ByID["a"].Calls("DeleteInstance"); len(calls) != 0 {
		t.Errorf("there were %d deletions", len(calls))
	}
	h.servers.Resize("a", 2, candidate)
	h.eventually("it is deleted", func() bool { return h.nstanceMachine(candidate) == nil })
	left := []string{ids[0], ids[2]}
	h.eventually("the others stay", func() bool { return slices.Equal(h.listed(), left) })
	if got := h.records(); got != 2 {
		t.Errorf("the server has %d instances stored", got)
	}
}

func TestAManagedInstanceThatIsLost(t *testing.T) {
	h, ids := newPoolHarness(t, 2)
	lost, client := ids[0], h.servers.ByID["a"].Kubernetes.CoreV1().Nodes()
	nodes, err := client.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	at := slices.IndexFunc(nodes.Items, hasProviderID(h.nstanceMachine(lost).Spec.ProviderID))
	require.NoError(t, client.Delete(t.Context(), nodes.Items[at].Name, metav1.DeleteOptions{}))
	h.eventually("its Machine is deleted", func() bool {
		return slices.ContainsFunc(h.CAPI.Changed, func(change string) bool { return strings.HasPrefix(change, "DELETE machines/"+lost+" ") })
	})
	if slices.ContainsFunc(h.CAPI.Changed, func(change string) bool { return !strings.HasPrefix(change, "DELETE machines/"+lost+" ") }) {
		t.Errorf("Cluster API got %q", h.CAPI.Changed)
	}
	h.eventually("it is replaced", func() bool {
		now := h.listed()
		return len(now) == 2 && slices.Contains(now, ids[1]) && !slices.Contains(now, lost)
	})
	h.delete(lost)
	h.eventually("it is deleted", func() bool { return h.nstanceMachine(lost) == nil })
	if calls := h.servers.ByID["a"].Calls("DeleteInstance"); len(calls) != 0 {
		t.Errorf("there were %d deletions", len(calls))
	}
}
