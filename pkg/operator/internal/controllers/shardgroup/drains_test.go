// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

const blocked = `Pod "shop/cart-0" is kept on Node "knd1" by PodDisruptionBudget "cart"`

// draining is what a sync sees of a shard in order whose Nodes are drained.
func draining(seen drains) observation {
	all := connected(reported())
	all.drains = seen
	return all
}

func TestStatusOfDrains(t *testing.T) {
	const was = "DrainsProgressing=False DrainBlocked: " + blocked
	tests := map[string]struct {
		before, seen drains
		want         string
	}{
		"none ever":                 {drains{}, drains{}, ""},
		"the first":                 {drains{}, drains{draining: 1}, "DrainsProgressing=True Draining: "},
		"one of several is blocked": {drains{}, drains{3, 1, blocked}, was},
		"the blocked one gets on":   {drains{3, 1, blocked}, drains{draining: 2}, "DrainsProgressing=True Draining: "},
		"all are done":              {drains{3, 1, blocked}, drains{}, "DrainsProgressing=True NoDrains: "},
		"nothing new":               {drains{3, 1, blocked}, drains{3, 1, blocked}, was},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := newObject()
			object.Status = newStatus(object, draining(test.before), outcome{now: then}, nil)
			got := newStatus(object, draining(test.seen), outcome{now: metav1.NewTime(then.Add(time.Hour))}, nil)
			if *got.Draining != int32(test.seen.draining) || *got.DrainsBlocked != int32(test.seen.blocked) {
				t.Errorf("%d drain and %d are blocked, want %+v", *got.Draining, *got.DrainsBlocked, test.seen)
			}
			want := []string{"ShardReachable=True Reachable: ", "ConfigValid=True ConfigAccepted: ", "Ready=True Ready: "}
			if test.want != "" {
				want = append(want, test.want)
			}
			words := describe(got.Conditions)
			if slices.Sort(words); !slices.Equal(words, slices.Sorted(slices.Values(want))) {
				t.Errorf("got %q, want %q", words, want)
			}
			if !got.LastSyncTime.Equal(&then) {
				t.Error("what the operator does itself was taken for news from the server")
			}
			if same := test.before == test.seen; same != equality.Semantic.DeepEqual(got, object.Status) {
				t.Errorf("from %+v came %+v", object.Status, got)
			}
		})
	}
}

// After a start nothing is known of a shard's drains, and they have not ended.
func TestStatusKeepsDrainsOfAShardThatIsBeingConnected(t *testing.T) {
	object := newObject()
	object.Status = newStatus(object, draining(drains{3, 1, blocked}), outcome{now: then}, nil)
	for name, seen := range map[string]observation{
		"being connected": {configured: true},
		"away":            {configured: true, lost: lost},
	} {
		got := newStatus(object, seen, outcome{now: metav1.Now()}, nil)
		if *got.Draining != 3 || *got.DrainsBlocked != 1 || !slices.Contains(describe(got.Conditions), "DrainsProgressing=False DrainBlocked: "+blocked) {
			t.Errorf("%s: %d drain, %d are blocked, %q", name, *got.Draining, *got.DrainsBlocked, describe(got.Conditions))
		}
	}
}

// The groups of a shard are known earlier than its drains.
func TestStatusKeepsDrainsUntilTheShardHasReportedThem(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.drains = drains{3, 1, blocked}
	h.Expect(writeStatus)

	// The operator starts again.
	h.drains = drains{}
	h.a().Settled = false
	h.Expect()
	if got := h.object().Status; *got.Draining != 3 || *got.DrainsBlocked != 1 || !slices.Contains(h.conditions(), "DrainsProgressing=False DrainBlocked: "+blocked) {
		t.Errorf("%d drain, %d are blocked, %q", *got.Draining, *got.DrainsBlocked, h.conditions())
	}
	// Those that are known are reported.
	h.drains = drains{draining: 1}
	h.Expect(writeStatus)
	h.drains = drains{}
	h.Expect()

	h.Show()
	enqueued := controllertest.Enqueued(t, &h.controller.queue, func() {
		h.controller.drainsReported("a")
		h.a().Settled = true
		h.controller.drainsReported("a")
	})
	if want := []string{"workers--a at 1s"}; !slices.Equal(enqueued, want) {
		t.Errorf("enqueued %q, want %q", enqueued, want)
	}
	h.Expect(writeStatus)
	if got := h.object().Status; *got.Draining != 0 || *got.DrainsBlocked != 0 {
		t.Errorf("%d drain, %d are blocked", *got.Draining, *got.DrainsBlocked)
	}
	h.a().Session, h.a().Settled = 1, false
	h.drains = drains{draining: 2}
	h.Expect(writeStatus)
	h.drains = drains{}
	h.Expect(writeStatus)
}

// A new shard group has no drains of before.
func TestStatusOfANewGroupHasNoDrains(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.a().Settled = false
	h.Expect(writeStatus)
	if got := h.object().Status; got.Draining == nil || *got.Draining != 0 {
		t.Errorf("draining is %v", got.Draining)
	}
}

// A drain goes on while its shard is away, and so does the report of it.
func TestStatusTellsDrainsOfAShardThatIsAway(t *testing.T) {
	object := newObject()
	object.Status = newStatus(object, draining(drains{draining: 3}), outcome{now: then}, nil)
	seen := observation{configured: true, synced: true, lost: lost, group: reported(), drains: drains{3, 1, blocked}}
	if got := newStatus(object, seen, outcome{now: then}, nil); *got.DrainsBlocked != 1 {
		t.Errorf("%d are blocked, want 1", *got.DrainsBlocked)
	}
}

func TestDrainsAreWrittenOncePerChange(t *testing.T) {
	object := newObject()
	object.Status = newStatus(object, connected(reported()), outcome{now: then}, nil)
	h := newHarness(t, object)
	h.setGroup(reported())
	h.Expect()

	h.drains = drains{2, 1, blocked}
	h.Expect(writeStatus)
	h.Expect()
	got := h.object().Status
	if *got.Draining != 2 || *got.DrainsBlocked != 1 || !slices.Contains(h.conditions(), "DrainsProgressing=False DrainBlocked: "+blocked) {
		t.Errorf("got %+v", got)
	}
	// The event is on the Node.
	if events := h.Events(); len(events) > 0 {
		t.Errorf("events %q", events)
	}

	h.drains = drains{}
	h.Expect(writeStatus)
	h.Expect()
}

// Instances of a group that is being deleted are drained like any other.
func TestStatusOfDrainsOfAGroupThatGoes(t *testing.T) {
	seen := connected(changed(reported(), func(g *shard.Group) { g.Deleting = true }))
	seen.drains = drains{draining: 3}
	got := newStatus(controllertest.Deleting(newObject()), seen, outcome{now: then}, nil)
	if *got.Draining != 3 || !slices.Contains(describe(got.Conditions), "DrainsProgressing=True Draining: ") {
		t.Errorf("%d drain, %q", *got.Draining, describe(got.Conditions))
	}
}

func TestApplyStatusSaysDrains(t *testing.T) {
	object := newObject()
	object.Status = newStatus(object, draining(drains{3, 1, blocked}), outcome{now: then}, nil)
	applied := applyStatus(object, object.Status).Status
	if *applied.Draining != 3 || *applied.DrainsBlocked != 1 ||
		*applied.Conditions[0].Type != v1beta1.ConditionDrainsProgressing {
		t.Errorf("got %+v", applied)
	}
}
