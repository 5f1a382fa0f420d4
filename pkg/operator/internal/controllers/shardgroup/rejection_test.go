// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// rejectedHarness returns a harness whose shard has another size and rejects a change.
func rejectedHarness(t *testing.T, code codes.Code) *harness {
	t.Helper()
	h := newHarness(t, newObject())
	h.setGroup(changed(reported(), func(g *shard.Group) { g.Size = 1 }))
	h.Fake.Fail["upsert"] = status.Error(code, "no such template")
	if code == codes.Internal {
		assert.Equal(t, unclearRetry, h.Expect(upsert3, writeStatus), "the delay of the second try")
		h.Advance(unclearRetry)
	}
	assert.Equal(t, rejectedRetry, h.Expect(upsert3, writeStatus), "the delay of the next try")
	return h
}

func TestARejectedConfigurationIsSentAgainAfterAWhile(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.Internal} {
		h := rejectedHarness(t, code)
		want := []string{"ShardReachable=True Reachable: ", "ConfigValid=False ConfigRejected: no such template", "Ready=False ConfigRejected: no such template"}
		if got := slices.Sorted(slices.Values(h.conditions())); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("%s: the conditions are %q", code, got)
		}
		for range 4 {
			h.Advance(time.Minute)
			if requeue := h.Expect(); requeue <= 0 || requeue > rejectedRetry {
				t.Errorf("%s: the next try is in %s", code, requeue)
			}
		}
		h.Advance(59 * time.Second)
		h.Expect()
		h.Advance(time.Second)
		if requeue := h.Expect(upsert3); requeue != rejectedRetry {
			t.Errorf("%s: after the second rejection the next try is in %s", code, requeue)
		}
		if got, want := h.Events(), []string{"Warning ConfigRejected no such template"}; !slices.Equal(got, want) {
			t.Errorf("%s: recorded %q, want %q", code, got, want)
		}
	}
}

// A broken connection causes Internal too.
func TestABrokenConnectionIsNotARejection(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(changed(reported(), func(g *shard.Group) { g.Size = 1 }))
	fail := func(text string) { h.Fake.Fail["upsert"] = status.Error(codes.Internal, text) }
	pending := func(text string) {
		t.Helper()
		want := []string{"Ready=False UpsertFailed: " + text, "ShardReachable=True Reachable: "}
		if got := slices.Sorted(slices.Values(h.conditions())); !slices.Equal(got, want) {
			t.Errorf("the conditions are %q, want %q", got, want)
		}
	}
	fail("stream terminated by RST_STREAM with error code: INTERNAL_ERROR")
	assert.Equal(t, unclearRetry, h.Expect(upsert3, writeStatus))
	pending("stream terminated by RST_STREAM with error code: INTERNAL_ERROR")
	h.Advance(unclearRetry - time.Second)
	assert.Equal(t, time.Second, h.Expect(), "the next try is not earlier")
	pending("stream terminated by RST_STREAM with error code: INTERNAL_ERROR")

	// A different text is another rejection, and so is a rejection after another reply.
	h.Advance(time.Second)
	fail("stream terminated by RST_STREAM with error code: PROTOCOL_ERROR")
	assert.Equal(t, unclearRetry, h.Expect(upsert3, writeStatus))
	pending("stream terminated by RST_STREAM with error code: PROTOCOL_ERROR")
	h.Advance(unclearRetry)
	h.Fake.Fail["upsert"] = lost
	_, _, err := h.Sync()
	require.True(t, shard.IsUnreachable(err), "%v", err)
	fail("stream terminated by RST_STREAM with error code: PROTOCOL_ERROR")
	assert.Equal(t, unclearRetry, h.Expect(upsert3, writeStatus))

	h.Advance(unclearRetry)
	delete(h.Fake.Fail, "upsert")
	assert.Zero(t, h.Expect(upsert3, writeStatus))
	assert.Contains(t, h.conditions(), "ConfigValid=True ConfigAccepted: ")
	assert.Empty(t, h.controller.unclear)
	for _, event := range h.Events() {
		assert.NotContains(t, event, "ConfigRejected")
	}
}

func TestARefusalOfInstancesAsTheyComeAndGo(t *testing.T) {
	h := rejectedHarness(t, codes.Internal)
	h.setGroup(changed(h.group(), func(g *shard.Group) { g.ActualSize = 2 }))
	h.Expect(writeStatus)
	h.setGroup(changed(h.group(), func(g *shard.Group) { g.ActualSize = 3 }))
	h.Expect(writeStatus)
}

func TestANewSpecIsTriedAtOnce(t *testing.T) {
	h := rejectedHarness(t, codes.Internal)
	delete(h.Fake.Fail, "upsert")
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Template = "another" })
	h.Expect(upsert3, writeStatus)
	if got := h.conditions(); !slices.Contains(got, "ConfigValid=True ConfigAccepted: ") {
		t.Errorf("the conditions are %q", got)
	}
	if requeue := h.Expect(); requeue != 0 {
		t.Errorf("requeued after %s", requeue)
	}
}

func TestAChangedServerIsTriedAtOnce(t *testing.T) {
	h := rejectedHarness(t, codes.Internal)
	h.setGroup(changed(reported(), func(g *shard.Group) { g.Size, g.ETag = 1, "etag-2" }))
	h.Expect(upsert3)
}

// Another client has sent the server the configuration that it rejected from this operator.
func TestARefusalEndsWhenTheServerHasWhatIsWanted(t *testing.T) {
	for name, etag := range map[string]string{"another etag": "etag-2", "the same etag": "etag-1"} {
		h := rejectedHarness(t, codes.Internal)
		h.setGroup(changed(reported(), func(g *shard.Group) { g.ETag = etag }))
		if requeue := h.Expect(writeStatus); requeue != 0 {
			t.Errorf("%s: requeued after %s", name, requeue)
		}
		want := []string{"ShardReachable=True Reachable: ", "ConfigValid=True ConfigAccepted: ", "Ready=True Ready: "}
		if got := h.conditions(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
			t.Errorf("%s: the conditions are %q", name, got)
		}
	}
}

// An older rejection must not delay unrelated requests.
func TestARefusalDoesNotHideErrors(t *testing.T) {
	h := rejectedHarness(t, codes.Internal)
	h.Fake.Fail["upsert"] = lost
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 4 })
	if _, requeue, err := h.Sync(); !shard.IsUnreachable(err) {
		t.Errorf("a lost connection gives error %v and a requeue after %s", err, requeue)
	}

	h = rejectedHarness(t, codes.Internal)
	h.Fake.Fail["delete"] = lost
	h.change(func(g *v1beta1.NstanceShardGroup) { controllertest.Deleting(g) })
	if _, requeue, err := h.Sync(); !shard.IsUnreachable(err) {
		t.Errorf("a deletion that failed gives error %v and a requeue after %s", err, requeue)
	}
}

func TestARefusalIsForgottenWithItsObject(t *testing.T) {
	h := rejectedHarness(t, codes.Internal)
	require.NoError(t, h.Tracker().Delete(v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups"), namespace, "workers--a"))
	h.Expect()
	if got := len(h.controller.rejections) + len(h.controller.unclear); got != 0 {
		t.Errorf("%d rejections are stored", got)
	}
}

func TestProviderErrorsAreVisibleUntilTheGroupHasItsSize(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(changed(reported(), func(g *shard.Group) { g.ActualSize, g.ProviderIDs = 2, []string{"i-1", "i-2"} }))
	h.Expect(writeStatus)
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", Message: "out of capacity"})
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "unknown", Message: "out of capacity"})
	h.Expect(writeStatus)
	if got, want := h.conditions(), "Ready=False ProviderError: out of capacity"; !slices.Contains(got, want) {
		t.Errorf("the conditions are %q, want %q", got, want)
	}
	if got, want := h.Events(), []string{"Warning ProviderError out of capacity"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	// An equal error again changes nothing.
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", Message: "out of capacity"})
	h.Expect()

	h.setGroup(reported())
	h.Expect(writeStatus)
	if got := h.conditions(); !slices.Contains(got, "Ready=True Ready: ") {
		t.Errorf("the conditions are %q", got)
	}
	// The error no longer applies, and is not reported when the group scales next.
	h.setGroup(changed(reported(), func(g *shard.Group) { g.ActualSize, g.ProviderIDs = 2, []string{"i-1", "i-2"} }))
	h.Expect(writeStatus)
	if got, want := h.conditions(), "Ready=True Ready: "; !slices.Contains(got, want) {
		t.Errorf("the conditions are %q, want %q", got, want)
	}
}

// scalingGroup returns the group without instance i-3, which the server lists as pending.
func scalingGroup() *shard.Group {
	return changed(reported(), func(g *shard.Group) {
		g.ActualSize, g.ProviderIDs = 2, []string{"i-1", "i-2"}
		g.ListsInstances = true
		g.Instances = []shard.Instance{{ID: "i-1"}, {ID: "i-2"}, {ID: "i-3", State: shard.InstancePending}}
	})
}

const outOfCapacity = "Ready=False ProviderError: out of capacity"

func TestErrorsOfInstancesOfOthersAreIgnored(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(scalingGroup())
	h.Expect(writeStatus)
	// The controller of NstanceMachines reports the errors of on-demand instances.
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "on-demand-1", Message: "quota exceeded"})
	h.Expect()
	assert.Empty(t, h.Events())
	assert.Contains(t, h.conditions(), "Ready=True Ready: ")

	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "i-3", Message: "out of capacity"})
	h.Expect(writeStatus)
	assert.Contains(t, h.conditions(), outOfCapacity)
	h.ExpectEvents("Warning ProviderError out of capacity")

	// An error of another instance does not replace the first error.
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "on-demand-1", Message: "quota exceeded"})
	h.Expect()
	assert.Empty(t, h.Events())
	assert.Contains(t, h.conditions(), outOfCapacity)
}

// A server reports an error of a new instance before the list that contains it arrives.
func TestErrorOfAnInstanceThatIsListedLater(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(changed(scalingGroup(), func(g *shard.Group) {
		g.Instances = slices.DeleteFunc(g.Instances, func(i shard.Instance) bool { return i.ID == "i-3" })
	}))
	h.Expect(writeStatus)
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "i-3", Message: "out of capacity"})
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "on-demand-1", Message: "quota exceeded"})
	h.Expect()
	assert.Empty(t, h.Events())

	h.setGroup(scalingGroup())
	h.Expect(writeStatus)
	assert.Contains(t, h.conditions(), outOfCapacity)
	h.ExpectEvents("Warning ProviderError out of capacity")

	// The server has given up i-3 and creates another instance: the error still applies.
	h.setGroup(changed(scalingGroup(), func(g *shard.Group) { g.Instances[2].ID = "i-4" }))
	h.Expect()
	assert.Contains(t, h.conditions(), outOfCapacity)
	assert.Empty(t, h.Events())
}

func TestErrorsOfOtherInstancesAreLimited(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(scalingGroup())
	h.Expect(writeStatus)
	for i := range 2 * maxUnlistedErrors {
		h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: fmt.Sprintf("on-demand-%d", i), Message: "quota exceeded"})
	}
	// An instance that fails repeatedly does not displace errors of other instances.
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "i-4", Message: "out of capacity"})
	for range 2 * maxUnlistedErrors {
		h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "on-demand-1", Message: "quota exceeded"})
	}
	assert.Len(t, h.controller.failures[controllertest.Key("workers--a")].unlisted, maxUnlistedErrors)
	h.setGroup(changed(scalingGroup(), func(g *shard.Group) { g.Instances[2].ID = "i-4" }))
	h.Expect(writeStatus)
	assert.Contains(t, h.conditions(), outOfCapacity)
}

// Without a list of instances the instances of the group cannot be distinguished.
func TestErrorOfAnInstanceOfAServerThatListsNone(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(changed(reported(), func(g *shard.Group) { g.ActualSize, g.ProviderIDs = 2, []string{"i-1", "i-2"} }))
	h.Expect(writeStatus)
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "i-3", Message: "out of capacity"})
	h.Expect(writeStatus)
	assert.Contains(t, h.conditions(), outOfCapacity)
}
