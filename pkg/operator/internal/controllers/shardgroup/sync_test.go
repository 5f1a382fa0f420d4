// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
	h.Expect("upsert workers on a with size 5")
	h.Advance(reportDelay)
	h.Expect(writeStatus)
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

// scaled returns a harness whose shard has just accepted 5 instead of 3 instances.
func scaled(t *testing.T, change func(*harness)) *harness {
	t.Helper()
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.Expect(writeStatus)
	change(h)
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 5 })
	return h
}

// expectReported compares the generation of the status and of all its conditions, and the replicas.
func (h *harness) expectReported(generation int64, replicas int32) {
	h.T.Helper()
	status := h.object().Status
	generations := []int64{status.ObservedGeneration}
	for _, condition := range status.Conditions {
		generations = append(generations, condition.ObservedGeneration)
	}
	assert.Equal(h.T, slices.Repeat([]int64{generation}, len(generations)), generations, "generations")
	assert.Equal(h.T, replicas, *status.Replicas, "replicas")
}

const upsert5 = "upsert workers on a with size 5"

// A size and its effect are one status if the instances run in time. Until then nobody who compares
// generations takes the status for the status of the new size.
func TestASizeAndItsInstancesAreOneStatus(t *testing.T) {
	for name, replicas := range map[string]int32{"larger": 5, "smaller": 1} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newObject())
			h.setGroup(reported())
			h.Expect(writeStatus)
			h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = replicas })
			assert.Equal(t, reportDelay, h.Expect(fmt.Sprintf("upsert workers on a with size %d", replicas)))
			h.Advance(controller.BatchPeriod)
			assert.Equal(t, reportDelay-controller.BatchPeriod, h.Expect(), "the rest of the delay")
			h.expectReported(1, 3)
			h.setGroup(changed(h.group(), func(g *shard.Group) { g.ActualSize = replicas }))
			h.Expect(writeStatus)
			h.expectReported(2, replicas)
			h.Advance(10 * time.Minute)
			assert.Zero(t, h.Expect())
		})
	}
}

func TestASizeWhoseInstancesAreSlowIsReported(t *testing.T) {
	h := scaled(t, func(*harness) {})
	h.Expect(upsert5)
	h.Advance(reportDelay - time.Millisecond)
	assert.Equal(t, time.Millisecond, h.Expect())
	h.Advance(time.Millisecond)
	assert.Zero(t, h.Expect(writeStatus))
	h.expectReported(2, 3)
	h.setGroup(changed(h.group(), func(g *shard.Group) { g.ActualSize = 5 }))
	h.Expect(writeStatus)
	h.expectReported(2, 5)
}

// The call may take seconds.
func TestTheDelayOfAStatusBeginsWhenTheShardHasAnswered(t *testing.T) {
	h := scaled(t, func(*harness) {})
	h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) {
		h.Advance(8 * time.Second)
		return accept(config)
	}
	assert.Equal(t, reportDelay, h.Expect(upsert5))
}

// A size that is sent again, because another writer has changed the group, does not delay the status
// further.
func TestACorrectionDoesNotDelayTheStatus(t *testing.T) {
	h := scaled(t, func(*harness) {})
	h.Expect(upsert5)
	h.Advance(reportDelay - time.Millisecond)
	h.setGroup(changed(h.group(), func(g *shard.Group) { g.Size = 9 }))
	assert.Equal(t, time.Millisecond, h.Expect(upsert5))
	h.Advance(time.Millisecond)
	h.Expect(writeStatus)
	h.expectReported(2, 3)
}

// Whatever else the status has to report is reported at once.
func TestWhatIsNotOnlyANewGenerationIsReportedAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*harness)
		calls  []string
	}{
		"no instance to wait for": {func(h *harness) {
			h.setGroup(changed(h.group(), func(g *shard.Group) { g.ActualSize = 5 }))
			h.Expect(writeStatus)
		}, []string{upsert5, writeStatus}},
		"a new instance": {func(h *harness) { h.setGroup(changed(h.group(), func(g *shard.Group) { g.ActualSize = 4 })) }, []string{upsert5, writeStatus}},
		"settings in effect": {func(h *harness) {
			h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) {
				config.InstanceType = "huge"
				return accept(config)
			}
		}, []string{upsert5, writeStatus}},
		"a rejection": {func(h *harness) { h.Fake.Fail["upsert"] = status.Error(codes.InvalidArgument, "too many") }, []string{upsert5, writeStatus}},
		"a pause":     {func(h *harness) { h.paused = "workers is paused" }, []string{writeStatus}},
		"a drain":     {func(h *harness) { h.drains.draining = 1 }, []string{upsert5, writeStatus}},
		"no connection": {func(h *harness) {
			h.a().Reachable, h.a().Lost = false, lost
		}, []string{writeStatus}},
		"no such shard": {func(h *harness) { delete(h.Fake.ByID, "a") }, []string{writeStatus}},
	} {
		t.Run(name, func(t *testing.T) {
			h := scaled(t, test.change)
			h.Expect(test.calls...)
			assert.EqualValues(t, 2, h.object().Status.ObservedGeneration)
		})
	}
}

// What happens during the delay ends it.
func TestAProblemEndsTheDelayOfAStatus(t *testing.T) {
	for name, happens := range map[string]func(*harness){
		"no connection": func(h *harness) { h.a().Reachable, h.a().Lost = false, lost },
		"a drain":       func(h *harness) { h.drains.draining = 1 },
		"a pause":       func(h *harness) { h.paused = "workers is paused" },
		"a new leader": func(h *harness) {
			h.controller.mu.Lock()
			defer h.controller.mu.Unlock()
			clear(h.controller.sent)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := scaled(t, func(*harness) {})
			h.Expect(upsert5)
			happens(h)
			h.Expect(writeStatus)
			assert.EqualValues(t, 2, h.object().Status.ObservedGeneration)
		})
	}
}
