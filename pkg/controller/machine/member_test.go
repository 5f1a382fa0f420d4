// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

const askForM = "ask for m on a"

// listed is the instance of the member "m".
func listed(state shard.InstanceState) shard.Instance {
	return shard.Instance{ID: "m", State: state, ProviderID: "provider-m"}
}

// No Machine owns it, and nothing is asked for: the shard lists it.
func TestAMemberIsFollowedByWhatItsShardLists(t *testing.T) {
	h := newHarness(t, newShards("a"), newMember("m"))
	h.shards.list(shard.Instance{ID: "m", State: shard.InstancePending})
	h.expect(applyStatusM)
	h.expectReady("False Provisioning: instance m is pending")
	h.expectCondition(v1beta1.ConditionInstanceCreated, "True InstanceCreated: ")
	if got := h.machine("m").Status; got.Shard != "a" || got.InstanceID != "m" || got.RequestID != "" || got.Initialization.Provisioned != nil {
		t.Errorf("the status is %+v", got)
	}
	if requeue := h.expect(); requeue != 0 {
		t.Errorf("looks again in %s, want to be woken", requeue)
	}

	h.shards.list(shard.Instance{ID: "m", State: shard.InstanceRunning})
	h.expect(applyStatusM)
	h.expectReady("False Provisioning: instance m has no provider id")
	h.shards.list(listed(shard.InstanceRunning))
	h.expect(applyMachineM, applyStatusM)
	h.expectReady("True Ready: ")
	got := h.machine("m")
	if got.Spec.ProviderID != "provider-m" || !ptr.Deref(got.Status.Initialization.Provisioned, false) || !ptr.Deref(got.Status.Ready, false) {
		t.Errorf("it has provider id %q and status %+v", got.Spec.ProviderID, got.Status)
	}
	h.expect()

	h.addNode(newNode("n", "aws:///zone/provider-m"))
	h.expect(applyMachineM, applyStatusM)
	if got := h.machine("m"); got.Spec.ProviderID != "aws:///zone/provider-m" || len(got.Status.Addresses) != 2 {
		t.Errorf("it has provider id %q and addresses %v", got.Spec.ProviderID, got.Status.Addresses)
	}

	h.shards.list(listed(shard.InstanceFailed))
	h.expect(applyStatusM)
	h.expectReady("False InstanceFailed: instance m is failed")
	h.shards.list(listed(shard.InstanceTerminating))
	h.expect(applyStatusM)
	h.expectReady("False ServerDeleted: instance m is terminating")
	if got, want := h.events(), []string{"Warning InstanceFailed instance m is failed", "Warning ServerDeleted instance m is terminating"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	if len(h.controller.placements) != 0 || h.controller.counted("workers", "a") != 0 {
		t.Error("it counts for placement")
	}
}

func TestAMemberThatIsNotListedIsAskedFor(t *testing.T) {
	for name, test := range map[string]struct {
		owned bool
		then  string
	}{
		"and has a Machine": {true, `DELETE machines/m {"kind":"DeleteOptions","apiVersion":"cluster.x-k8s.io/v1beta2","preconditions":{"uid":"uid-of-owner-m"}}`},
		"and has none":      {false, deleteM},
	} {
		t.Run(name, func(t *testing.T) {
			machine := runningMember("m")
			if test.owned {
				owned(machine)
			}
			h := newHarness(t, newShards("a"), machine)
			h.shards.list()
			h.shards.instances["m"] = ptr.To(listed(shard.InstanceTerminating))
			// The answer is not the end of it.
			if requeue := h.expect(askForM, applyStatusM); requeue != firstAsk {
				t.Errorf("asks again in %s", requeue)
			}
			h.expectReady("False ServerDeleted: instance m is terminating")
			h.expect()
			h.after(time.Minute)
			h.expect(askForM)
			delete(h.shards.instances, "m")
			h.after(time.Minute)
			h.expect(askForM, applyStatusM)
			h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: the shard no longer knows the instance")
			h.expect(test.then)
		})
	}
}

// A list from before the instance, or without it for no reason, ends nothing.
func TestAMemberThatRunsAndIsNotListedStays(t *testing.T) {
	h := newHarness(t, newShards("a"), runningMember("m"))
	h.shards.list()
	h.shards.instances["m"] = ptr.To(listed(shard.InstanceRunning))
	for _, delay := range []time.Duration{1, 2, 4} {
		if requeue := h.expect(askForM); requeue != delay*time.Second {
			t.Errorf("asks again in %s, want %ds", requeue, delay)
		}
		h.after(time.Minute)
	}
	h.expectReady("True Ready: ")
	h.shards.list(listed(shard.InstanceRunning))
	h.expect()

	// Nor does a shard that is away, or that was not read.
	h.shards.list()
	h.shards.byID["a"].reachable = false
	h.expect()
	h.shards.byID["a"].hasGroup, h.shards.byID["a"].synced = false, false
	h.expect()
	h.shards.byID["a"].reachable = true
	h.expect()
	h.expectReady("True Ready: ")
}

// The whole group is gone, so nobody lists anything.
func TestAMemberOfAGroupThatIsGone(t *testing.T) {
	h := newHarness(t, newShards("a"), runningMember("m"))
	h.shards.byID["a"].hasGroup = false
	h.expect(askForM, applyStatusM)
	h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: the shard no longer knows the instance")
}

// Cluster API makes it again.
func TestAMemberSurvivesItsMachine(t *testing.T) {
	h := newHarness(t, newShards("a"), owned(runningMember("m")))
	h.shards.list(listed(shard.InstanceRunning))
	h.hideOwner()
	h.expect()
}

func TestMembersThatAreListedCostNoCalls(t *testing.T) {
	const members = 500
	var machines []*v1beta1.NstanceMachine
	var instances []shard.Instance
	for i := range members {
		name := fmt.Sprintf("i-%03d", i)
		machines = append(machines, owned(runningMember(name)))
		instances = append(instances, shard.Instance{ID: name, State: shard.InstanceRunning, ProviderID: "provider-" + name})
	}
	h := newHarness(t, newShards("a"), machines...)
	h.ctx = klog.NewContext(t.Context(), klog.Logger{})
	syncAll := func() {
		for _, machine := range machines {
			if _, err := h.controller.sync(h.ctx, cache.NewObjectName(namespace, machine.Name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.shards.list(instances...)
	syncAll()
	// The shard was away, and then the operator.
	h.shards.session++
	syncAll()
	h.restart(h.shards)
	syncAll()
	if calls, writes := h.shards.told(), h.Writes(); len(calls)+len(writes)+len(h.capi.Changed) != 0 {
		t.Errorf("did %d calls and %d writes", len(calls), len(writes))
	}
}

func TestWhichMembersHaveReported(t *testing.T) {
	reported := func(change func(*v1beta1.NstanceMachine)) *v1beta1.NstanceMachine {
		machine := runningMember("m")
		change(machine)
		return machine
	}
	not := func(reason, message string) *v1beta1.NstanceMachine {
		return reported(func(m *v1beta1.NstanceMachine) {
			setCondition(m, v1beta1.ConditionReady, metav1.ConditionFalse, reason, message)
		})
	}
	is := func(state shard.InstanceState) *shard.Instance { return ptr.To(listed(state)) }
	for name, test := range map[string]struct {
		machine *v1beta1.NstanceMachine
		listed  *shard.Instance
		missing bool
		want    bool
	}{
		"a new one":                    {newMember("m"), is(shard.InstancePending), false, false},
		"it runs":                      {runningMember("m"), is(shard.InstanceRunning), false, true},
		"it runs by another id":        {runningMember("m"), &shard.Instance{ID: "m", State: shard.InstanceRunning, ProviderID: "other"}, false, false},
		"it runs and was pending":      {not(v1beta1.ReasonProvisioning, "instance m is pending"), is(shard.InstanceRunning), false, false},
		"it has failed":                {runningMember("m"), is(shard.InstanceFailed), false, false},
		"it had failed":                {not(v1beta1.ReasonInstanceFailed, "instance m is failed"), is(shard.InstanceFailed), false, true},
		"it had stopped before":        {not(v1beta1.ReasonInstanceFailed, "instance m is stopped"), is(shard.InstanceFailed), false, false},
		"it ends":                      {runningMember("m"), is(shard.InstanceTerminating), false, false},
		"it ends, as was announced":    {not(v1beta1.ReasonServerDeleted, "the shard is ending the instance: spot"), is(shard.InstanceTerminating), false, true},
		"it is missing":                {runningMember("m"), nil, true, false},
		"it is missing, and has ended": {endedByServer(runningMember("m")), nil, true, true},
		"it is missing, and goes":      {deleting(runningMember("m")), nil, true, true},
		"it goes":                      {deleting(runningMember("m")), is(shard.InstanceTerminating), false, true},
		"the shard lists nothing":      {runningMember("m"), nil, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			setCondition(test.machine, "Other", metav1.ConditionTrue, "Other", "")
			if got := reports(test.machine, test.listed, test.missing); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

func TestTheFinalizerOfAMemberComesBack(t *testing.T) {
	machine := newMember("m")
	machine.Finalizers = nil
	h := newHarness(t, newShards("a"), machine)
	h.shards.list(shard.Instance{ID: "m", State: shard.InstancePending})
	h.expect(applyMachineM, applyStatusM)
	if !held(h.machine("m")) {
		t.Error("nothing keeps it")
	}

	// One without a shard is nobody's instance.
	machine = withoutShard(newMember("m"))
	machine.Finalizers = nil
	h = newHarness(t, newShards("a"), machine)
	h.expect(applyStatusM)
	h.expectReady(`False UnknownShard: shard "" is not configured`)
}
