// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	upsert3     = "upsert workers on a with size 3"
	writeStatus = "apply nstanceshardgroups/status workers--a"
	release     = "patch nstanceshardgroups workers--a"
)

func TestSyncUpsertsOnceAndThenDoesNothing(t *testing.T) {
	h := newHarness(t, newObject())
	h.Expect(upsert3, writeStatus)
	h.Expect()
	h.setGroup(reported())
	h.Expect(writeStatus)
	for range 3 {
		h.Advance(10 * time.Minute)
		h.Expect()
	}
	if want := []string{"ShardReachable=True Reachable: ", "ConfigValid=True ConfigAccepted: ", "Ready=True Ready: "}; !slices.Equal(h.conditions(), want) {
		t.Errorf("the conditions are %q", h.conditions())
	}
	if got := h.Events(); len(got) > 0 {
		t.Errorf("recorded %q", got)
	}
}

func TestSyncCorrectsDrift(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.Expect(writeStatus)
	h.setGroup(changed(reported(), func(g *shard.Group) { g.Size, g.ETag = 9, "etag-2" }))
	did, _, err := h.Sync()
	if err != nil || len(did) == 0 || did[0] != upsert3 {
		t.Errorf("did %q, error %v", did, err)
	}
}

// Cluster API deletes the Node of an instance that is missing in the pool.
func TestSyncKeepsInstancesThatTheReplyOmits(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.Expect(writeStatus)
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 5 })
	h.Expect("upsert workers on a with size 5", writeStatus)
	got := h.object().Status
	if want := []string{"i-1", "i-2", "i-3"}; !slices.Equal(got.ProviderIDs, want) || *got.Replicas != 3 {
		t.Errorf("after an answer without instances the status has %q and %d replicas", got.ProviderIDs, *got.Replicas)
	}
}

func TestSyncOfAStaleCacheWaits(t *testing.T) {
	h := newHarness(t, newObject())
	h.Expect(upsert3, writeStatus)
	did, requeue, err := h.SyncStale()
	if err != nil || len(did) > 0 || requeue != controller.StaleRetry {
		t.Errorf("did %q, requeue %s, error %v", did, requeue, err)
	}
}

func TestSyncMakesNoCallWithoutAConnection(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"not configured": func(h *harness) { delete(h.Fake.ByID, "a") },
		"not synced":     func(h *harness) { h.a().Synced = false },
		"not reachable":  func(h *harness) { h.a().Reachable, h.a().Lost = false, lost },
	} {
		for _, object := range []*v1beta1.NstanceShardGroup{newObject(), controllertest.Deleting(newObject())} {
			h := newHarness(t, object)
			change(h)
			h.Expect(writeStatus)
			h.Expect()
			if got := h.object(); got == nil || len(got.Finalizers) != 1 {
				t.Errorf("%s: the finalizer is gone", name)
			}
		}
	}
}

func TestAShardThatIsConnectedAgainIsRecorded(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.Expect(writeStatus)
	h.a().Reachable, h.a().Lost = false, lost
	h.Expect(writeStatus)
	h.a().Reachable, h.a().Lost = true, nil
	h.Expect(writeStatus)
	h.Expect()
	want := []string{"Warning ShardUnreachable connection rejected", `Normal ShardReachable shard "a" is connected again`}
	if got := h.Events(); !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestSyncOfADisconnectedShardIsReportedOnceAndSendsTheLatestSize(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.Expect(writeStatus)
	h.a().Reachable, h.a().Lost = false, lost
	h.Expect(writeStatus)
	h.Expect()
	if got, want := h.Events(), []string{"Warning ShardUnreachable connection rejected"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	if got := h.object().Status.ProviderIDs; len(got) != 3 {
		t.Errorf("the ids are %q", got)
	}
	for size := range int32(5) {
		h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 10 + size })
		h.Expect(writeStatus)
	}
	h.a().Reachable, h.a().Lost = true, nil
	h.Expect("upsert workers on a with size 14", writeStatus)
}

func TestSyncWithoutAReplyIsRetried(t *testing.T) {
	h := newHarness(t, newObject())
	h.Fake.Fail["upsert"] = status.Error(codes.DeadlineExceeded, "too late")
	did, _, err := h.Sync()
	if !slices.Equal(did, []string{upsert3, writeStatus}) || !shard.IsUnreachable(err) {
		t.Errorf("did %q, error %v; want an error for the retry", did, err)
	}
	if want := "ShardReachable=False ShardUnreachable: too late"; h.conditions()[0] != want {
		t.Errorf("the conditions are %q", h.conditions())
	}
	// An equal problem again is neither written nor recorded.
	if did, _, err := h.Sync(); !slices.Equal(did, []string{upsert3}) || err == nil {
		t.Errorf("did %q, error %v", did, err)
	}
	if got := h.Events(); len(got) != 1 {
		t.Errorf("recorded %q", got)
	}
}

func TestSyncOfAFailureIsRetried(t *testing.T) {
	h := newHarness(t, newObject())
	h.Fake.Fail["upsert"] = status.Error(codes.Unimplemented, "no such call")
	if _, _, err := h.Sync(); err == nil {
		t.Error("no error for the retry")
	}
	if got := h.conditions(); !slices.Contains(got, "Ready=False UpsertFailed: no such call") {
		t.Errorf("the conditions are %q", got)
	}
}

func TestSyncRetriesWhenTheStatusCannotBeWritten(t *testing.T) {
	h := newHarness(t, newObject())
	failed := errors.New("failed")
	h.Fail(writeStatus, failed)
	if _, _, err := h.Sync(); !errors.Is(err, failed) {
		t.Errorf("got error %v", err)
	}
	h.Fail(writeStatus, nil)
	h.Expect(writeStatus)
}

func TestPausedCallsNothingAndStillReports(t *testing.T) {
	h := newHarness(t, newObject())
	h.paused = "workers has the annotation cluster.x-k8s.io/paused"
	h.Expect(writeStatus)
	if got, want := h.conditions(), "Ready=Unknown Paused: "+h.paused; !slices.Contains(got, want) {
		t.Errorf("the conditions are %q, want %q", got, want)
	}
	h.setGroup(reported())
	h.Expect(writeStatus)
	if got := h.object().Status; *got.Replicas != 3 || !slices.Contains(h.conditions(), "Ready=True Ready: ") {
		t.Errorf("while paused %d replicas are reported, and the conditions are %q", *got.Replicas, h.conditions())
	}
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 1 })
	h.Expect(writeStatus)
	h.paused = ""
	h.Expect("upsert workers on a with size 1", writeStatus)
}

func TestPausedByItsOwnAnnotation(t *testing.T) {
	object := newObject()
	object.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	h := newHarness(t, object)
	h.Expect(writeStatus)
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Annotations = nil })
	h.Expect("upsert workers on a with size 3", writeStatus)
}
