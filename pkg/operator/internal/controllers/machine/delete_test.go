// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

func TestDeletionDeletesTheInstance(t *testing.T) {
	h := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1")))
	if requeue := h.Expect(deleteOnA, applyStatusM); requeue != time.Second {
		t.Errorf("repeats it in %s", requeue)
	}
	h.expectReady("False Deleting: the shard is deleting the instance")
	for _, delay := range []time.Duration{2, 4, 8, 10, 10} {
		if requeue := h.Expect(); requeue <= 0 || requeue > 10*time.Second {
			t.Errorf("syncs again in %s", requeue)
		}
		h.Advance(10 * time.Second)
		if requeue := h.Expect(deleteOnA); requeue != delay*time.Second {
			t.Errorf("repeats it in %s, want %ds", requeue, delay)
		}
	}
	h.Advance(10 * time.Second)
	h.shardA().Deleted = true
	h.Expect(deleteOnA, patchM)
	if h.nstanceMachine("m") != nil {
		t.Error("it is still there")
	}
	h.Expect()
	if len(h.controller.syncStates) != 0 {
		t.Error("its state was not dropped")
	}
}

func TestDeletionIsConfirmedByANotice(t *testing.T) {
	h := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1")))
	h.Expect(deleteOnA, applyStatusM)
	h.shardA().Notices["i-1"] = shard.DeletionNotice{State: shard.Deleting}
	h.Expect()
	h.shardA().Notices["i-1"] = shard.DeletionNotice{State: shard.Deleted}
	h.Expect(patchM)
}

func TestDeletionBeforeTheCreateRequest(t *testing.T) {
	h := newHarness(t, newShards(), deleting(withFinalizer(newNstanceMachine("m"))))
	h.Expect(patchM)

	// The finalizer of another controller remains.
	machine := deleting(newNstanceMachine("m"))
	machine.Finalizers = []string{"example.com/other"}
	h = newHarness(t, newShards("a"), machine)
	h.Expect()

	machine = deleting(withFinalizer(newNstanceMachine("m")))
	machine.Finalizers = []string{"example.com/other", v1beta1.FinalizerMachine}
	h = newHarness(t, newShards("a"), machine)
	h.Expect(patchM)
	if got := h.nstanceMachine("m").Finalizers; !slices.Equal(got, []string{"example.com/other"}) {
		t.Errorf("the finalizers are %q", got)
	}
	h.Expect()
}

// The process that sent the request may have crashed before the reply.
func TestDeletionAfterACreateRequestWithoutAReply(t *testing.T) {
	h := newHarness(t, newShards("a"), withShard(newNstanceMachine("m")))
	h.Fake.OnCreate = func(string, string) {
		// The shard had created the instance.
		h.shardA().Instances["i-7"] = shard.Instance{ID: "i-7"}
		h.shardA().Requests["uid-of-m"] = "i-7"
	}
	h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
	h.Expect(createOnA, applyStatusM)
	h.expectReady("False Deleting: the shard is deleting the instance")
	h.shardA().Deleted = true
	h.Expect("delete i-7 on a", patchM)
	if h.nstanceMachine("m") != nil {
		t.Error("it is still there")
	}
}

func TestDeletionAfterARejectedCreateRequest(t *testing.T) {
	h := newHarness(t, newShards("a"), deleting(withShard(newNstanceMachine("m"))))
	h.Fake.Fail["create"] = declined
	h.Expect(createOnA, patchM)
	if h.nstanceMachine("m") != nil {
		t.Error("it is still there")
	}
}

// Without a confirmation by the shard the finalizer remains.
func TestDeletionWithoutAReply(t *testing.T) {
	failures := []error{
		shardtest.Unavailable,
		status.Error(codes.PermissionDenied, "not yours"),
		// The connection broke during a call that may have had an effect.
		status.Error(codes.Internal, "stream terminated by RST_STREAM"),
		status.Error(codes.DeadlineExceeded, "no reply"),
	}
	for name, machine := range map[string]func() *v1beta1.NstanceMachine{
		"of an instance":                func() *v1beta1.NstanceMachine { return deleting(running(newNstanceMachine("m"), "i-1")) },
		"after a request without reply": func() *v1beta1.NstanceMachine { return deleting(withShard(newNstanceMachine("m"))) },
		"before the instance ran":       func() *v1beta1.NstanceMachine { return deleting(withInstance(newNstanceMachine("m"), "i-1")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a"), machine())
			for _, failure := range failures {
				h.Fake.Fail["create"], h.Fake.Fail["delete"] = failure, failure
				for range 2 {
					if _, _, err := h.Sync(); err == nil {
						t.Fatalf("%v: got no error, want backoff", failure)
					}
				}
				h.expectReady(notDeleted + shard.Message(failure))
			}
			h.shardA().Reachable, h.shardA().Lost = false, shardtest.Unavailable
			h.Expect(applyStatusM)
			h.expectReady(notDeleted + "connection refused")
			h.shardA().Lost = nil
			h.Expect(applyStatusM)
			h.expectReady(notDeleted + "the shard is being connected")
			delete(h.Fake.ByID, "a")
			h.Expect(applyStatusM)
			id := cmp.Or(h.nstanceMachine("m").Status.InstanceID, "unknown")
			h.expectReady(notDeleted + `shard "a" is not configured; if the shard is lost, the annotation nstance.dev/confirm-abandon=a/` + id + " gives up the instance")
			if requeue := h.Expect(); requeue != 0 {
				t.Errorf("syncs again in %s, want no delay", requeue)
			}
			if !hasFinalizer(h.nstanceMachine("m")) {
				t.Error("the finalizer was removed")
			}
		})
	}
}

// A cache from before the create request does not show the instance.
func TestDeletionFromAStaleCache(t *testing.T) {
	h := newHarness(t, newShards("a"), withFinalizer(newNstanceMachine("m")))
	h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
	h.Show()
	h.change(func(m *v1beta1.NstanceMachine) {
		withShard(m)
		m.ResourceVersion = "99"
	})
	if did, _, err := h.SyncStale(); !apierrors.IsConflict(err) {
		t.Errorf("did %q, error %v, want a conflict", did, err)
	}
	if !hasFinalizer(h.nstanceMachine("m")) {
		t.Error("the finalizer was removed")
	}
}

func TestAnNstanceMachineWhoseMachineWasDeleted(t *testing.T) {
	t.Run("is deleted", func(t *testing.T) {
		h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
		h.hideMachine()
		h.Expect(deleteM)
		h.Expect(deleteOnA, applyStatusM)
	})
	t.Run("is deleted when another Machine has the name", func(t *testing.T) {
		h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
		another := newMachine("m")
		another.UID = types.UID("another")
		h.Put(h.Informers.Machines, another)
		h.CAPI.Has(h.T, another)
		h.Expect(deleteM)
	})
	t.Run("stays when only the cache does not have the Machine", func(t *testing.T) {
		h := newHarness(t, newShards("a"), newNstanceMachine("m"))
		h.hideMachine()
		h.CAPI.Has(h.T, newMachine("m"))
		h.Expect(applyM, applyStatusM)
		h.Expect(createOnA, applyStatusM)
	})
}

func TestAMachineIsDeletedOnceWhileTheCacheIsStale(t *testing.T) {
	h := newHarness(t, newShards("a"), withServerDeleted(running(newNstanceMachine("m"), "i-1")))
	_, _, err := h.Sync()
	require.NoError(t, err)
	deleted := 1
	for range 10 {
		did, _, err := h.Sync()
		require.NoError(t, err)
		deleted += len(did)
	}
	assert.Equal(t, 1, deleted, "deletions")
	// The deletion is requested again after the time in which the cache should have shown it.
	h.Advance(time.Minute)
	did, _, err := h.Sync()
	require.NoError(t, err)
	assert.Len(t, did, 1)
}

func TestAnNstanceMachineIsDeletedOnceWhileTheCacheIsStale(t *testing.T) {
	h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
	h.hideMachine()
	h.Show()
	deleted := 0
	for range 10 {
		did, _, err := h.SyncStale()
		require.NoError(t, err)
		deleted += len(did)
	}
	assert.Equal(t, 1, deleted, "deletions")
}

// Cluster API has not drained the Node, because the Machine did not exist. The shard drains
// it, because its group is deleted with the pool.
func TestAPoolMemberWithoutAMachineIsDrainedByItsShard(t *testing.T) {
	h := newHarness(t, newShards("a", "b"), deleting(runningPoolMember("m")))
	h.list(listed(shard.InstanceRunning))
	h.addPool(5, 3, 2)
	pool := newPool()
	pool.DeletionTimestamp = deleting(newPoolMember("x")).DeletionTimestamp
	pool.Finalizers = []string{"example.com/wait"}
	require.NoError(t, h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"), pool, controllertest.Namespace))
	h.shardA().Notices["m"] = shard.DeletionNotice{InstanceID: "m", State: shard.Draining, Reason: "group-deleted", DeleteAt: h.FakeClock.Now().Add(time.Hour)}
	if requeue := h.Expect(applyStatusM); requeue != 0 {
		t.Errorf("syncs again in %s, want no delay", requeue)
	}
	h.expectReady(notDeleted + "no Machine owns it, and the shard is draining it")
	h.shardA().Notices["m"] = shard.DeletionNotice{InstanceID: "m", State: shard.Deleting}
	h.Expect(deleteMOnA, applyStatusM)

	// The shard has cancelled its drain, and the NstanceMachine is still being deleted.
	t.Run("until the drain is cancelled", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(runningPoolMember("m")))
		h.shardA().Notices["m"] = shard.DeletionNotice{InstanceID: "m", State: shard.Draining}
		h.Expect(applyStatusM)
		delete(h.shardA().Notices, "m")
		h.Expect(deleteMOnA, applyStatusM)
	})
	t.Run("but not with a Machine", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(owned(runningPoolMember("m"))))
		h.shardA().Notices["m"] = shard.DeletionNotice{InstanceID: "m", State: shard.Draining}
		h.Expect(deleteMOnA, applyStatusM)
	})
}

// newDeletedMember returns a harness with a pool member that is being deleted. change changes
// its pool.
func newDeletedMember(t *testing.T, change func(*v1beta1.NstanceMachinePool)) *harness {
	t.Helper()
	h := newHarness(t, newShards("a", "b"), deleting(owned(runningPoolMember("m"))))
	h.list(listed(shard.InstanceRunning))
	h.addPool(5, 3, 2)
	pool := newPool()
	change(pool)
	require.NoError(t, h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"), pool, controllertest.Namespace))
	return h
}

// The instance is not deleted, whatever the state of the shard.
func TestRetainedInstanceIsNotDeleted(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"its shard is connected":      func(*harness) {},
		"its shard is away":           func(h *harness) { h.shardA().Reachable = false },
		"its shard is not configured": func(h *harness) { delete(h.Fake.ByID, "a") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newDeletedMember(t, func(pool *v1beta1.NstanceMachinePool) {
				controllertest.Deleting(pool)
				pool.Spec.DeletionPolicy = v1beta1.DeletionRetain
			})
			change(h)
			h.Expect(patchM)
			assert.Nil(t, h.nstanceMachine("m"))
		})
	}
}

// The policy matters only for the deletion of the pool of this instance.
func TestOtherInstancesAreNotRetained(t *testing.T) {
	for name, change := range map[string]func(*v1beta1.NstanceMachinePool){
		"the pool is not being deleted": func(pool *v1beta1.NstanceMachinePool) { pool.Spec.DeletionPolicy = v1beta1.DeletionRetain },
		"another pool of the name": func(pool *v1beta1.NstanceMachinePool) {
			controllertest.Deleting(pool)
			pool.Spec.DeletionPolicy, pool.UID = v1beta1.DeletionRetain, "uid-of-another"
		},
	} {
		t.Run(name, func(t *testing.T) {
			newDeletedMember(t, change).Expect(deleteMOnA, applyStatusM)
		})
	}
}

// A shard that is not configured cannot confirm that an instance is deleted.
func TestAnInstanceOnALostShardIsGivenUpByAnAnnotation(t *testing.T) {
	annotate := func(h *harness, value string) {
		h.change(func(m *v1beta1.NstanceMachine) {
			m.Annotations[v1beta1.AnnotationConfirmAbandon] = value
		})
	}
	const blocked = `False Deleting: the shard has not confirmed that the instance is deleted: shard "a" is not configured; ` +
		"if the shard is lost, the annotation nstance.dev/confirm-abandon=a/"
	t.Run("that is known", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1")))
		delete(h.Fake.ByID, "a")
		h.Expect(applyStatusM)
		h.expectReady(blocked + "i-1 gives up the instance")
		h.Events()
		for _, value := range []string{"", "a", "a/i-2", "b/i-1", "a/unknown", "true"} {
			annotate(h, value)
			h.Expect()
		}
		annotate(h, "a/i-1")
		h.Expect(patchM)
		assert.Nil(t, h.nstanceMachine("m"))
		assert.Equal(t, []string{`Warning ShardAbandoned the instance on shard "a" was given up: a/i-1`}, h.Events())
	})
	t.Run("whose create request had no reply", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(withShard(newNstanceMachine("m"))))
		delete(h.Fake.ByID, "a")
		h.Expect(applyStatusM)
		h.expectReady(blocked + "unknown gives up the instance")
		annotate(h, "a/unknown")
		h.Expect(patchM)
		assert.Nil(t, h.nstanceMachine("m"))
	})
	t.Run("but not while the shard is configured", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1")))
		h.Fake.ByID["a"] = shardtest.NewShard()
		h.shardA().Reachable = false
		annotate(h, "a/i-1")
		h.Expect(applyStatusM)
		require.NotNil(t, h.nstanceMachine("m"))
	})
	t.Run("but not before it is deleted", func(t *testing.T) {
		h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
		delete(h.Fake.ByID, "a")
		annotate(h, "a/i-1")
		h.Expect()
		require.NotNil(t, h.nstanceMachine("m"))
	})
}

// TestDeletionOfAnInstanceIsAudited: calls that only query whether the deletion is complete
// are not audited.
func TestDeletionOfAnInstanceIsAudited(t *testing.T) {
	h, log := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1"))), audittest.NewLog()
	h.Ctx = log.Context(h.Ctx)
	h.Expect(deleteOnA, applyStatusM)
	lines := log.Take()
	if assert.Len(t, lines, 1) {
		assert.Regexp(t, "^Audit: delete instance shard=a group=workers instance=i-1 .*to=deleting .*writer=NstanceMachine m is deleted"+
			" reason=requested result=accepted requestID=ID$", lines[0].String())
	}
	assert.Contains(t, h.Events(), `Normal DeletingInstance shard "a" deletes instance i-1; requestID ID; NstanceMachine m is deleted`)
	h.Advance(10 * time.Second)
	h.Expect(deleteOnA)
	h.Advance(10 * time.Second)
	h.shardA().Deleted = true
	h.Expect(deleteOnA, patchM)
	log.Expect(t)
	for _, event := range h.Events() {
		assert.NotContains(t, event, "DeletingInstance")
	}
}

// A scale-down and a rotation are not problems.
func TestADeletionThatWasWantedIsNoWarning(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*harness)
		want   string
	}{
		"scale-down":   {noticed("scale-down"), "Normal InstanceDeleted the shard is deleting the instance: scale-down"},
		"requested":    {noticed("requested"), "Normal InstanceDeleted the shard is deleting the instance: requested"},
		"config-drift": {noticed("config-drift"), "Normal InstanceDeleted the shard is deleting the instance: config-drift"},
		"expired":      {noticed("expired"), "Normal InstanceDeleted the shard is deleting the instance: expired"},
		"unhealthy":    {noticed("unhealthy"), "Warning ServerDeleted the shard is deleting the instance: unhealthy"},
		"unregistered": {noticed("unregistered"), "Warning ServerDeleted the shard is deleting the instance: unregistered"},
		"spot":         {noticed("spot"), "Warning ServerDeleted the shard is deleting the instance: spot"},
		"unhealthy, and selected by the pool": {func(h *harness) {
			h.resize(0, "m")
			noticed("unhealthy")(h)
		}, "Warning ServerDeleted the shard is deleting the instance: unhealthy"},
		"only listed":                         {func(*harness) {}, "Warning ServerDeleted instance m is terminating"},
		"only listed, another is selected":    {func(h *harness) { h.resize(0, "other") }, "Warning ServerDeleted instance m is terminating"},
		"only listed, selected by the pool":   {func(h *harness) { h.resize(0, "m") }, "Normal InstanceDeleted instance m is terminating"},
		"only listed, selected on the server": {func(h *harness) { h.changeGroup(func(g *shard.Group) { g.RemoveFirst = []string{"m"} }) }, "Normal InstanceDeleted instance m is terminating"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a"), runningPoolMember("m"))
			h.addPool(1, 1, 0)
			h.list(listed(shard.InstanceTerminating))
			test.change(h)
			h.Expect(applyStatusM)
			assert.Equal(t, []string{test.want}, h.Events())
		})
	}
}

// noticed makes shard a report that it is deleting instance m.
func noticed(reason string) func(*harness) {
	return func(h *harness) {
		h.shardA().Notices["m"] = shard.DeletionNotice{InstanceID: "m", State: shard.Deleting, Reason: reason}
		h.shardA().Groups["workers"] = shard.Group{Key: "workers", ETag: "1", ListsInstances: true,
			Instances: []shard.Instance{listed(shard.InstanceTerminating)}}
	}
}
