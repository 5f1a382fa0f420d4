// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// refusedHarness is a shard that has another size and refuses to change it.
func refusedHarness(t *testing.T, code codes.Code) *harness {
	t.Helper()
	h := newHarness(t, newObject())
	h.shard.group = changed(reported(), func(g *shard.Group) { g.Size = 1 })
	h.shard.upsert = refuse(status.Error(code, "no such template"))
	if requeue := h.expect(upsert3, writeStatus); requeue != rejectedRetry {
		t.Errorf("the next try is in %s, want %s", requeue, rejectedRetry)
	}
	return h
}

func TestARefusalIsToldOnceAndNotAskedForAgain(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.Internal} {
		h := refusedHarness(t, code)
		want := []string{"ShardReachable=True Reachable: ", "ConfigValid=False ConfigRejected: no such template", "Ready=False ConfigRejected: no such template"}
		if !slices.Equal(h.conditions(), want) {
			t.Errorf("%s: the conditions are %q", code, h.conditions())
		}
		for range 4 {
			h.after(time.Minute)
			if requeue := h.expect(); requeue <= 0 || requeue > rejectedRetry {
				t.Errorf("%s: the next try is in %s", code, requeue)
			}
		}
		h.after(59 * time.Second)
		h.expect()
		h.after(time.Second)
		if requeue := h.expect(upsert3); requeue != rejectedRetry {
			t.Errorf("%s: after the second refusal the next try is in %s", code, requeue)
		}
		if got, want := h.events(), []string{"Warning ConfigRejected no such template"}; !slices.Equal(got, want) {
			t.Errorf("%s: recorded %q, want %q", code, got, want)
		}
	}
}

func TestARefusalOfInstancesAsTheyComeAndGo(t *testing.T) {
	h := refusedHarness(t, codes.Internal)
	h.shard.group.ActualSize = 2
	h.expect(writeStatus)
	h.shard.group.ActualSize = 3
	h.expect(writeStatus)
}

func TestANewSpecIsTriedAtOnce(t *testing.T) {
	h := refusedHarness(t, codes.Internal)
	h.shard.upsert = accept
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Template = "another" })
	h.expect(upsert3, writeStatus)
	if got := h.conditions(); !slices.Contains(got, "ConfigValid=True ConfigAccepted: ") {
		t.Errorf("the conditions are %q", got)
	}
	if requeue := h.expect(); requeue != 0 {
		t.Errorf("requeued after %s", requeue)
	}
}

func TestAChangedServerIsTriedAtOnce(t *testing.T) {
	h := refusedHarness(t, codes.Internal)
	h.shard.group = changed(reported(), func(g *shard.Group) { g.Size, g.ETag = 1, "etag-2" })
	h.expect(upsert3)
}

// Somebody has given the server what it refused to take from us.
func TestARefusalEndsWhenTheServerHasWhatIsWanted(t *testing.T) {
	for name, etag := range map[string]string{"another etag": "etag-2", "the same etag": "etag-1"} {
		h := refusedHarness(t, codes.Internal)
		h.shard.group = changed(reported(), func(g *shard.Group) { g.ETag = etag })
		if requeue := h.expect(writeStatus); requeue != 0 {
			t.Errorf("%s: requeued after %s", name, requeue)
		}
		want := []string{"ShardReachable=True Reachable: ", "ConfigValid=True ConfigAccepted: ", "Ready=True Ready: "}
		if !slices.Equal(h.conditions(), want) {
			t.Errorf("%s: the conditions are %q", name, h.conditions())
		}
	}
}

// An older refusal must not put off what has nothing to do with it.
func TestARefusalDoesNotHideErrors(t *testing.T) {
	h := refusedHarness(t, codes.Internal)
	h.shard.upsert = refuse(lost)
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 4 })
	if _, requeue, err := h.sync(); !shard.IsUnreachable(err) {
		t.Errorf("a lost connection gives error %v and a requeue after %s", err, requeue)
	}

	h = refusedHarness(t, codes.Internal)
	h.shard.remove = lost
	h.change(func(g *v1beta1.NstanceShardGroup) { deleting(g) })
	if _, requeue, err := h.sync(); !shard.IsUnreachable(err) {
		t.Errorf("a deletion that failed gives error %v and a requeue after %s", err, requeue)
	}
}

func TestARefusalIsForgottenWithItsObject(t *testing.T) {
	h := refusedHarness(t, codes.Internal)
	if err := h.Tracker().Delete(v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups"), namespace, "workers--a"); err != nil {
		t.Fatal(err)
	}
	h.expect()
	if got := len(h.controller.rejected); got != 0 {
		t.Errorf("%d refusals are remembered", got)
	}
}
