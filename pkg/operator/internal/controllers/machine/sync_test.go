// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

func TestAnNstanceMachineGetsARunningInstance(t *testing.T) {
	h := newHarness(t, newShards("a"), newNstanceMachine("m"))
	h.Fake.OnCreate = func(id, requestID string) {
		stored := h.nstanceMachine("m")
		if !hasFinalizer(stored) || stored.Status.Shard != id || stored.Status.RequestID != requestID || requestID != "uid-of-m" {
			t.Errorf("requested %q from shard %q, stored is %+v", requestID, id, stored.Status)
		}
	}
	h.Expect(applyM, applyStatusM)
	h.expectReady(`False Provisioning: an instance is being requested from shard "a"`)
	h.Expect(createOnA, applyStatusM)
	h.expectReady("False Provisioning: instance i-1 was requested")
	h.expectCondition(v1beta1.ConditionInstanceCreated, "True InstanceCreated: ")

	if requeue := h.Expect(getOnA, applyStatusM); requeue != time.Second {
		t.Errorf("queries again in %s", requeue)
	}
	h.expectReady("False Provisioning: instance i-1 is pending")
	for _, delay := range []time.Duration{2, 4, 8, 16, 30, 30} {
		h.Expect()
		h.Advance(30 * time.Second)
		if requeue := h.Expect(getOnA); requeue != delay*time.Second {
			t.Errorf("queries again in %s, want %ds", requeue, delay)
		}
	}
	h.Advance(30 * time.Second)
	h.shardA().Instances["i-1"] = shard.Instance{ID: "i-1", State: shard.InstanceRunning}
	h.Expect(getOnA, applyStatusM)
	h.expectReady("False Provisioning: instance i-1 has no provider id")
	if h.nstanceMachine("m").Status.Initialization.Provisioned != nil {
		t.Error("an instance without a provider id is provisioned")
	}

	h.Advance(30 * time.Second)
	h.runInstance()
	h.Expect(getOnA, applyM, applyStatusM)
	h.expectReady("True Ready: ")
	got := h.nstanceMachine("m")
	if got.Spec.ProviderID != "provider-i-1" || got.Status.ProviderID != "provider-i-1" ||
		!ptr.Deref(got.Status.Ready, false) || !ptr.Deref(got.Status.Initialization.Provisioned, false) ||
		got.Status.ObservedGeneration != got.Generation {
		t.Errorf("the NstanceMachine is %+v, %+v", got.Spec, got.Status)
	}
	assert.Equal(t, map[string]string{v1beta1.AnnotationRequest: "a/uid-of-m", v1beta1.AnnotationInstanceID: "i-1"}, got.Annotations)
	for range 3 {
		h.Advance(time.Hour)
		if requeue := h.Expect(); requeue != 0 {
			t.Errorf("a ready one is synced again in %s", requeue)
		}
	}
	if got := h.Events(); got != nil {
		t.Errorf("recorded %q", got)
	}
}

func TestWhatACreateRequestWaitsFor(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*harness)
		want    string
	}{
		"no owner": {func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.OwnerReferences = nil })
		}, "False WaitingForMachine: no Machine owns it"},
		"an owner of another kind": {func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.OwnerReferences[0].APIVersion = "example.com/v1" })
		}, "False WaitingForMachine: no Machine owns it"},
		"a Machine that is being deleted": {func(h *harness) {
			owner := newMachine("m")
			owner.DeletionTimestamp = ptr.To(metav1.NewTime(h.FakeClock.Now()))
			h.Put(h.Informers.Machines, owner)
		}, `False WaitingForMachine: Machine "m" is being deleted`},
		"the bootstrap data": {func(h *harness) {
			owner := newMachine("m")
			owner.Spec.Bootstrap.DataSecretName = nil
			h.Put(h.Informers.Machines, owner)
		}, `False WaitingForMachine: Machine "m" has no bootstrap data`},
		"the Cluster": {func(h *harness) {
			h.Put(h.Informers.Clusters, &clusterv1.Cluster{ObjectMeta: newCluster().ObjectMeta})
		}, "False WaitingForMachine: the infrastructure of the Cluster is not provisioned"},
		"no Cluster": {func(h *harness) {
			require.NoError(h.T, h.Informers.Clusters.GetIndexer().Delete(newCluster()))
		}, "False WaitingForMachine: the infrastructure of the Cluster is not provisioned"},
		"a shard that has the group": {func(h *harness) { delete(h.shardA().Groups, "workers") }, "False NoShard: no shard has the group"},
		"a shard whose groups are known": {func(h *harness) { h.shardA().Synced = false },
			"False NotSynced: no shard whose groups are known can be used; not known yet: a"},
		"a shard that is configured": {func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.Spec.Shard = "z" })
		}, `False UnknownShard: shard "z" is not configured`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a"), newNstanceMachine("m"))
			test.prepare(h)
			if requeue := h.Expect(applyStatusM); requeue != 0 {
				t.Errorf("syncs again in %s, want no delay", requeue)
			}
			h.expectReady(test.want)
			h.expectCondition(v1beta1.ConditionInstanceCreated, test.want)
			h.Expect()
		})
	}
}

// The instance must be in the failure domain of the Machine, so a contradiction is refused.
func TestTwoShardsAreRequested(t *testing.T) {
	machine := newNstanceMachine("m")
	machine.Spec.Shard = "b"
	h := newHarness(t, newShards("a", "b"), machine)
	owner := newMachine("m")
	owner.Spec.FailureDomain = "a"
	h.Put(h.Informers.Machines, owner)
	h.Expect(applyStatusM)
	h.expectReady(`False InstanceRefused: spec.shard is "b", and spec.failureDomain of Machine "m" is "a"; they must be the same, or one of them unset`)
	h.Expect()
}

// The shard provides the userdata, so bootstrap data of others would be ignored.
func TestBootstrapDataIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		bootstrap clusterv1.Bootstrap
		unused    string
	}{
		"a Secret":   {clusterv1.Bootstrap{DataSecretName: ptr.To("mine")}, `dataSecretName "mine"`},
		"a provider": {clusterv1.Bootstrap{DataSecretName: ptr.To(""), ConfigRef: clusterv1.ContractVersionedObjectReference{Kind: "TalosConfig", Name: "mine"}}, `configRef to TalosConfig "mine"`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a"), newNstanceMachine("m"))
			owner := newMachine("m")
			owner.Spec.Bootstrap = test.bootstrap
			h.Put(h.Informers.Machines, owner)
			h.Expect(applyStatusM)
			h.expectReady(`False WaitingForMachine: Machine "m" has bootstrap data that is not used, ` + test.unused +
				`: the shard provides the userdata of its instances; set spec.bootstrap.dataSecretName to "", without a configRef`)
			h.Expect()
		})
	}
}

func TestTheShardThatIsRequested(t *testing.T) {
	for name, test := range map[string]struct {
		spec    v1beta1.Identifier
		failure string
		want    string
	}{
		"by the NstanceMachine":           {"b", "", "b"},
		"by the Machine":                  {"", "b", "b"},
		"by both":                         {"b", "b", "b"},
		"by neither: the first of equals": {"", "", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := newNstanceMachine("m")
			machine.Spec.Shard = test.spec
			h := newHarness(t, newShards("a", "b"), machine)
			owner := newMachine("m")
			owner.Spec.FailureDomain = test.failure
			h.Put(h.Informers.Machines, owner)
			h.Expect(applyM, applyStatusM)
			if got := h.nstanceMachine("m").Status.Shard; got != test.want {
				t.Errorf("chose %q, want %q", got, test.want)
			}
		})
	}
}

func TestARejectedRequestIsRepeatedLaterOrWhenTheGroupChanges(t *testing.T) {
	h := newHarness(t, newShards("a"), withShard(newNstanceMachine("m")))
	h.Fake.Fail["create"] = declined
	if requeue := h.Expect(createOnA, applyStatusM); requeue != 5*time.Minute {
		t.Errorf("repeats it in %s", requeue)
	}
	h.expectCondition(v1beta1.ConditionInstanceCreated, "False InstanceRefused: group does not exist")
	h.expectReady("False InstanceRefused: group does not exist")
	h.Advance(time.Minute)
	if requeue := h.Expect(); requeue != 4*time.Minute {
		t.Errorf("repeats it in %s", requeue)
	}
	h.Advance(4 * time.Minute)
	h.Expect(createOnA)
	h.changeGroup(func(g *shard.Group) { g.ETag = "2" })
	h.Expect(createOnA)
	if got := h.Events(); len(got) != 1 || got[0] != "Warning InstanceRefused group does not exist" {
		t.Errorf("recorded %q", got)
	}
	h.Fake.Fail["create"] = nil
	h.changeGroup(func(g *shard.Group) { g.ETag = "3" })
	h.Expect(createOnA, applyStatusM)
	if len(h.shardA().Instances) != 1 {
		t.Errorf("there are %d instances", len(h.shardA().Instances))
	}
}

// If the connection breaks during a call, the code is the same as for some rejections.
func TestACreateRequestThatWasPerhapsLostIsRepeatedSoon(t *testing.T) {
	h := newHarness(t, newShards("a"), withShard(newNstanceMachine("m")))
	fail := func(text string) { h.Fake.Fail["create"] = status.Error(codes.Internal, text) }
	expect := func(delay time.Duration, did ...string) {
		t.Helper()
		if requeue := h.Expect(did...); requeue != delay {
			t.Errorf("repeats it in %s, want %s", requeue, delay)
		}
		h.Advance(delay)
	}
	fail("stream terminated by RST_STREAM")
	expect(unclearRetry, createOnA, applyStatusM)
	fail("unknown template")
	expect(unclearRetry, createOnA, applyStatusM)
	expect(rejectionRetry, createOnA)
	expect(rejectionRetry, createOnA)
	h.Fake.Fail["create"] = status.Error(codes.DeadlineExceeded, "no reply")
	if _, _, err := h.Sync(); !shard.IsUnreachable(err) {
		t.Errorf("got error %v, want backoff", err)
	}
	fail("unknown template")
	expect(unclearRetry, createOnA, applyStatusM)
	h.Fake.Fail["create"] = nil
	h.Expect(createOnA, applyStatusM)
	if len(h.shardA().Instances) != 1 {
		t.Errorf("there are %d instances", len(h.shardA().Instances))
	}
}

func TestACreateRequestToAShardThatIsNotConnected(t *testing.T) {
	h := newHarness(t, newShards("a"), withShard(newNstanceMachine("m")))
	// The shard is not connected yet, then disconnected, then disconnected during the call.
	h.shardA().Reachable = false
	h.Expect(applyStatusM)
	h.expectReady("False NotSynced: the shard is being connected")
	h.shardA().Lost = shardtest.Unavailable
	h.Expect(applyStatusM)
	h.expectReady("False ShardUnreachable: connection refused")
	h.shardA().Reachable = true
	h.Fake.Fail["create"] = status.Error(codes.DeadlineExceeded, "no reply")
	if _, _, err := h.Sync(); !shard.IsUnreachable(err) {
		t.Errorf("got error %v, want backoff", err)
	}
	h.expectReady("False ShardUnreachable: no reply")
	h.Fake.Fail["create"] = status.Error(codes.PermissionDenied, "not yours")
	if _, _, err := h.Sync(); err == nil {
		t.Error("got no error, want backoff")
	}
	h.expectReady("False InstanceRefused: not yours")
	delete(h.Fake.ByID, "a")
	h.Expect(applyStatusM)
	h.expectReady(`False UnknownShard: shard "a" is not configured`)
}

// A client that replaces the whole object may remove the finalizer.
func TestTheFinalizerIsAddedAgain(t *testing.T) {
	for stage, machine := range map[string]*v1beta1.NstanceMachine{
		"requested": withInstance(newNstanceMachine("m"), "i-1"),
		"running":   running(newNstanceMachine("m"), "i-1"),
	} {
		t.Run(stage, func(t *testing.T) {
			h := newHarness(t, newShards("a"), machine)
			h.runInstance()
			h.change(func(m *v1beta1.NstanceMachine) { m.Finalizers = nil })
			for range 3 {
				_, _, err := h.Sync()
				require.NoError(t, err)
			}
			if !hasFinalizer(h.nstanceMachine("m")) {
				t.Error("it has no finalizer, so its instance would outlive it")
			}
		})
	}
}

// The cache of a new leader may be older than the last write of the former leader.
func TestAStaleCacheErasesNothing(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"it would choose another shard":  func(h *harness) { delete(h.shardA().Groups, "workers") },
		"it would only write the status": func(h *harness) { h.Put(h.Informers.Clusters, &clusterv1.Cluster{ObjectMeta: newCluster().ObjectMeta}) },
	} {
		for stage, cached := range map[string]*v1beta1.NstanceMachine{
			"neither": newNstanceMachine("m"), "the finalizer": withFinalizer(newNstanceMachine("m")),
		} {
			t.Run(name+", the cache has "+stage, func(t *testing.T) {
				h := newHarness(t, newShards("a", "b"), cached.DeepCopy())
				change(h)
				h.change(func(m *v1beta1.NstanceMachine) {
					withInstance(m, "i-1")
					m.ResourceVersion = "99"
				})
				if _, _, err := h.SyncStale(); !apierrors.IsConflict(err) {
					t.Errorf("got error %v, want a conflict", err)
				}
				if got := h.nstanceMachine("m").Status; got.Shard != "a" || got.RequestID == "" || got.InstanceID != "i-1" || h.requests() != 0 {
					t.Errorf("the status is %+v, there were %d requests", got, h.requests())
				}
			})
		}
	}
}

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

// The notice of a deletion is sent once, and the cache drops it after some time.
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
