// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

func TestAPausedMachineOnlyReports(t *testing.T) {
	annotation := map[string]string{clusterv1.PausedAnnotation: ""}
	for by, test := range map[string]struct {
		pause   func(*harness)
		message string
	}{
		"its Cluster": {func(h *harness) {
			cluster := newCluster()
			cluster.Spec.Paused = ptr.To(true)
			h.put(h.clusters, cluster)
		}, "Cluster cluster--default has spec.paused"},
		"its Machine": {func(h *harness) {
			owner := newOwner("m")
			owner.Annotations = annotation
			h.put(h.owners, owner)
		}, "m has the annotation cluster.x-k8s.io/paused"},
		"itself": {func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.Annotations = annotation })
		}, "m has the annotation cluster.x-k8s.io/paused"},
	} {
		for stage, machine := range map[string]*v1beta1.NstanceMachine{
			"new":               newMachine("m"),
			"perhaps ordered":   claiming(newMachine("m")),
			"ordered":           having(newMachine("m"), "i-1"),
			"running":           running(newMachine("m"), "i-1"),
			"ended by shard":    endedByServer(running(newMachine("m"), "i-1")),
			"deleted":           deleting(running(newMachine("m"), "i-1")),
			"deleted, no order": deleting(holding(newMachine("m"))),
		} {
			t.Run(stage+", paused by "+by, func(t *testing.T) {
				h := newHarness(t, newShards("a"), machine.DeepCopy())
				h.shards.session = 1
				h.shards.notices["i-1"] = shard.Notice{State: shard.Deleted}
				h.addNode(newNode("n", "aws:///zone/provider-i-1"))
				test.pause(h)
				h.expect(applyStatusM)
				h.expectCondition(v1beta1.ConditionPaused, "True Paused: "+test.message)
				for range 2 {
					h.after(time.Hour)
					if requeue := h.expect(); requeue != 0 {
						t.Errorf("looks again in %s, want to be woken", requeue)
					}
				}
			})
		}
	}
}

func TestAMachineGoesOnAfterAPause(t *testing.T) {
	machine := newMachine("m")
	machine.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	h := newHarness(t, newShards("a"), machine)
	h.expect(applyStatusM)
	h.expectReady("False Paused: m has the annotation cluster.x-k8s.io/paused")
	h.change(func(m *v1beta1.NstanceMachine) { m.Annotations = nil })
	h.expect(applyMachineM, applyStatusM)
	h.expectCondition(v1beta1.ConditionPaused, "False NotPaused: ")
}

// The shard tells of an end once, and the cache forgets it after a while.
func TestAnEndThatWasAnnouncedDuringAPause(t *testing.T) {
	for name, test := range map[string]struct {
		announce func(*harness)
		want     []string
	}{
		"and is forgotten": {func(h *harness) {
			h.shards.notices["i-1"] = shard.Notice{State: shard.Deleted}
			delete(h.shards.instances, "i-1")
		}, []string{askA, applyStatusM}},
		"and nothing else": {func(*harness) {}, []string{askA, applyStatusM}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
			h.shards.run()
			h.shards.session = 1
			h.expect(askA)
			h.expect()

			h.change(func(m *v1beta1.NstanceMachine) { m.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} })
			h.expect(applyStatusM)
			test.announce(h)
			h.expect()
			delete(h.shards.notices, "i-1")
			h.change(func(m *v1beta1.NstanceMachine) { m.Annotations = nil })
			h.expect(test.want...)
			h.expectCondition(v1beta1.ConditionPaused, "False NotPaused: ")
			if got, want := serverDeleted(h.machine("m")), h.shards.instances["i-1"] == nil; got != want {
				t.Errorf("ended by the server is %t, want %t", got, want)
			}
		})
	}
}

// Nor can an end be written down while the API server is away.
func TestAnEndThatCouldNotBeWrittenDown(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
	h.shards.run()
	h.shards.session = 1
	h.expect(askA)
	h.shards.notices["i-1"] = shard.Notice{State: shard.Deleted}
	delete(h.shards.instances, "i-1")
	away := true
	h.PrependReactor("patch", machines.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return away, nil, apierrors.NewServiceUnavailable("away")
	})
	if _, _, err := h.sync(); err == nil {
		t.Fatal("got no error")
	}
	away = false
	delete(h.shards.notices, "i-1")
	h.expect(askA, applyStatusM)
	h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: the shard no longer knows the instance")
}

// The notice of its end is not kept for as long as a pause may last.
func TestAnInstanceIsVerifiedAfterAPause(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newMachine("m"), "i-1"))
	h.shards.session = 1
	h.shards.run()
	h.expect(askA)
	h.change(func(m *v1beta1.NstanceMachine) { m.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} })
	h.expect(applyStatusM)
	delete(h.shards.instances, "i-1")
	h.expect()
	h.change(func(m *v1beta1.NstanceMachine) { m.Annotations = nil })
	h.expect(askA, applyStatusM)
	h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: the shard no longer knows the instance")
}
