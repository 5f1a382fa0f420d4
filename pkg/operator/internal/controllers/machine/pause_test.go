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
	"nstance.dev/operator/pkg/operator/shard"
)

func TestAPausedNstanceMachineOnlyReports(t *testing.T) {
	annotation := map[string]string{clusterv1.PausedAnnotation: ""}
	for by, test := range map[string]struct {
		pause   func(*harness)
		message string
	}{
		"its Cluster": {func(h *harness) {
			cluster := newCluster()
			cluster.Spec.Paused = ptr.To(true)
			h.Put(h.Informers.Clusters, cluster)
		}, "Cluster cluster--default has spec.paused"},
		"its Machine": {func(h *harness) {
			owner := newMachine("m")
			owner.Annotations = annotation
			h.Put(h.Informers.Machines, owner)
		}, "m has the annotation cluster.x-k8s.io/paused"},
		"itself": {func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.Annotations = annotation })
		}, "m has the annotation cluster.x-k8s.io/paused"},
	} {
		for stage, machine := range map[string]*v1beta1.NstanceMachine{
			"new":                     newNstanceMachine("m"),
			"shard assigned":          withShard(newNstanceMachine("m")),
			"requested":               withInstance(newNstanceMachine("m"), "i-1"),
			"running":                 running(newNstanceMachine("m"), "i-1"),
			"deleted by shard":        withServerDeleted(running(newNstanceMachine("m"), "i-1")),
			"deleting":                deleting(running(newNstanceMachine("m"), "i-1")),
			"deleting, not requested": deleting(withFinalizer(newNstanceMachine("m"))),
		} {
			t.Run(stage+", paused by "+by, func(t *testing.T) {
				h := newHarness(t, newShards("a"), machine.DeepCopy())
				h.shardA().Session = 1
				h.shardA().Notices["i-1"] = shard.DeletionNotice{State: shard.Deleted}
				h.addNode(newNode("n", "aws:///zone/provider-i-1"))
				test.pause(h)
				h.Expect(applyStatusM)
				h.expectCondition(v1beta1.ConditionPaused, "True Paused: "+test.message)
				for range 2 {
					h.Advance(time.Hour)
					if requeue := h.Expect(); requeue != 0 {
						t.Errorf("syncs again in %s, want no delay", requeue)
					}
				}
			})
		}
	}
}

func TestSyncContinuesAfterAPause(t *testing.T) {
	machine := newNstanceMachine("m")
	machine.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	h := newHarness(t, newShards("a"), machine)
	h.Expect(applyStatusM)
	h.expectReady("False Paused: m has the annotation cluster.x-k8s.io/paused")
	h.change(func(m *v1beta1.NstanceMachine) { m.Annotations = nil })
	h.Expect(applyM, applyStatusM)
	h.expectCondition(v1beta1.ConditionPaused, "False NotPaused: ")
}

// There is one notice of a deletion, and the cache drops it after some time.
func TestADeletionNoticeDuringAPause(t *testing.T) {
	for name, test := range map[string]struct {
		report func(*harness)
		want   []string
	}{
		"that the cache drops": {func(h *harness) {
			h.shardA().Notices["i-1"] = shard.DeletionNotice{State: shard.Deleted}
			delete(h.shardA().Instances, "i-1")
		}, []string{getOnA, applyStatusM}},
		"that never came": {func(*harness) {}, []string{getOnA, applyStatusM}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
			h.runInstance()
			h.shardA().Session = 1
			h.Expect(getOnA)
			h.Expect()

			h.change(func(m *v1beta1.NstanceMachine) { m.Annotations[clusterv1.PausedAnnotation] = "" })
			h.Expect(applyStatusM)
			test.report(h)
			h.Expect()
			delete(h.shardA().Notices, "i-1")
			h.change(func(m *v1beta1.NstanceMachine) { delete(m.Annotations, clusterv1.PausedAnnotation) })
			h.Expect(test.want...)
			h.expectCondition(v1beta1.ConditionPaused, "False NotPaused: ")
			_, exists := h.shardA().Instances["i-1"]
			if got := serverDeleted(h.nstanceMachine("m")); got == exists {
				t.Errorf("ServerDeleted is %t, want %t", got, !exists)
			}
		})
	}
}

// A server without the watch of notices has no session, and reports no deletion.
func TestAnInstanceOnAServerWithoutNoticesIsVerifiedAfterAPause(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.runInstance()
	h.Expect()
	h.change(func(m *v1beta1.NstanceMachine) { m.Annotations[clusterv1.PausedAnnotation] = "" })
	h.Expect(applyStatusM)
	delete(h.shardA().Instances, "i-1")
	h.Expect()
	h.change(func(m *v1beta1.NstanceMachine) { delete(m.Annotations, clusterv1.PausedAnnotation) })
	h.Expect(getOnA, applyStatusM)
	h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: the shard does not have the instance any more")
}

// The status cannot be written while the API server does not reply.
func TestADeletionNoticeThatCannotBeWritten(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.runInstance()
	h.shardA().Session = 1
	h.Expect(getOnA)
	h.shardA().Notices["i-1"] = shard.DeletionNotice{State: shard.Deleted}
	delete(h.shardA().Instances, "i-1")
	failing := true
	h.PrependReactor("patch", nstanceMachines.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return failing, nil, apierrors.NewServiceUnavailable("later")
	})
	if _, _, err := h.Sync(); err == nil {
		t.Fatal("got no error")
	}
	failing = false
	delete(h.shardA().Notices, "i-1")
	h.Expect(getOnA, applyStatusM)
	h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: the shard does not have the instance any more")
}

// The cache drops a notice earlier than a pause may end.
func TestAnInstanceIsVerifiedAfterAPause(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.shardA().Session = 1
	h.runInstance()
	h.Expect(getOnA)
	h.change(func(m *v1beta1.NstanceMachine) { m.Annotations[clusterv1.PausedAnnotation] = "" })
	h.Expect(applyStatusM)
	delete(h.shardA().Instances, "i-1")
	h.Expect()
	h.change(func(m *v1beta1.NstanceMachine) { delete(m.Annotations, clusterv1.PausedAnnotation) })
	h.Expect(getOnA, applyStatusM)
	h.expectCondition(v1beta1.ConditionServerDeleted, "True ServerDeleted: the shard does not have the instance any more")
}
