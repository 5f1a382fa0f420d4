// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

var (
	then = metav1.NewTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	lost = status.Error(codes.Unavailable, "connection rejected")
)

// describe returns the conditions as text, in the order of the list.
func describe(conditions []metav1.Condition) []string {
	var words []string
	for _, c := range conditions {
		if c.Type == v1beta1.ConditionPaused && c.Status == metav1.ConditionFalse {
			continue
		}
		words = append(words, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return words
}

// otherCluster returns the error of a server whose tenant belongs to another cluster.
func otherCluster(t *testing.T) error {
	t.Helper()
	detailed, err := status.New(codes.PermissionDenied, "not yours").WithDetails(
		&errdetails.ErrorInfo{Domain: nstancev1.ErrorDomain, Reason: identifier.OtherClusterReason})
	require.NoError(t, err)
	return detailed.Err()
}

func TestStatusConditions(t *testing.T) {
	going := controllertest.Deleting(newObject())
	smaller := changed(reported(), func(g *shard.Group) { g.Size, g.ActualSize = 1, 1 })
	rejected := &rejection{revision: revisionOf(newObject()), message: "no such template"}
	tests := map[string]struct {
		object   *v1beta1.NstanceShardGroup
		seen     observation
		done     outcome
		rejected *rejection
		want     []string
	}{
		"the shard runs what is wanted": {newObject(), connected(reported()), outcome{}, nil, []string{
			"ShardReachable=True Reachable: ", "ConfigValid=True ConfigAccepted: ", "Ready=True Ready: "}},
		"instances are on their way": {newObject(), connected(changed(reported(), func(g *shard.Group) { g.ActualSize = 1 })), outcome{}, nil, []string{
			"ShardReachable=True Reachable: ", "ConfigValid=True ConfigAccepted: ", "Ready=True Ready: "}},
		"there are too many instances": {newObject(), connected(changed(reported(), func(g *shard.Group) { g.ActualSize = 4 })), outcome{}, nil, []string{
			"ShardReachable=True Reachable: ", "ConfigValid=True ConfigAccepted: ", "Ready=True Ready: "}},
		"a size that has not been sent is not there": {newObject(), connected(smaller), outcome{}, nil, []string{
			"ShardReachable=True Reachable: ", "Ready=True Ready: "}},
		"the shard is not configured": {newObject(), observation{lost: errors.New("not connected")}, outcome{}, nil, []string{
			`ShardReachable=False UnknownShard: shard "a" is not configured`, `Ready=False UnknownShard: shard "a" is not configured`}},
		"the shard is being connected": {newObject(), observation{configured: true}, outcome{}, nil, []string{
			"ShardReachable=Unknown NotSynced: the shard is being connected", "Ready=Unknown NotSynced: the shard is being connected"}},
		"the shard is away": {newObject(), observation{configured: true, lost: lost}, outcome{}, nil, []string{
			"ShardReachable=False ShardUnreachable: connection rejected", "Ready=False ShardUnreachable: connection rejected"}},
		"the server of another shard answers": {newObject(), observation{configured: true, lost: fmt.Errorf("list: %w", &shard.WrongServerError{Want: "us", Got: "them"})}, outcome{}, nil, []string{
			"ShardReachable=False WrongShard: the server at the address of the shard is them, not us",
			"Ready=False WrongShard: the server at the address of the shard is them, not us"}},
		"the shard reports too much": {newObject(), observation{configured: true, synced: true, lost: fmt.Errorf("list: %w", shard.Exceeds(shard.LimitGroups, "groups", 2001, 2000))}, outcome{}, nil, []string{
			"ShardReachable=False ShardLimitExceeded: the shard reports 2001 groups, at most 2000 are allowed",
			"Ready=False ShardLimitExceeded: the shard reports 2001 groups, at most 2000 are allowed"}},
		"the tenant belongs to another cluster": {newObject(), observation{configured: true, synced: true, lost: fmt.Errorf("list: %w", otherCluster(t))}, outcome{}, nil, []string{
			"ShardReachable=False OtherCluster: not yours", "Ready=False OtherCluster: not yours"}},
		"the shard did not answer": {newObject(), connected(smaller), outcome{step: upsert, err: fmt.Errorf("upserting: %w", lost)}, nil, []string{
			"ShardReachable=False ShardUnreachable: connection rejected", "Ready=False ShardUnreachable: connection rejected"}},
		"the shard rejected": {newObject(), connected(smaller), outcome{step: upsert, err: status.Error(codes.Internal, "no such template")}, rejected, []string{
			"ShardReachable=True Reachable: ", "ConfigValid=False ConfigRejected: no such template", "Ready=False ConfigRejected: no such template"}},
		"the shard failed": {newObject(), connected(smaller), outcome{step: upsert, err: status.Error(codes.Unimplemented, "no such call")}, nil, []string{
			"ShardReachable=True Reachable: ", "Ready=False UpsertFailed: no such call"}},
		"it is being deleted and the shard is away": {going, observation{configured: true, synced: true, lost: lost}, outcome{}, nil, []string{
			"ShardReachable=False ShardUnreachable: connection rejected",
			"Ready=False Deleting: the shard has not confirmed the deletion of the group: connection rejected"}},
		"it is being deleted and the shard is not configured": {going, observation{}, outcome{}, nil, []string{
			`ShardReachable=False UnknownShard: shard "a" is not configured`,
			`Ready=False Deleting: the shard has not confirmed the deletion of the group: shard "a" is not configured; ` +
				`if the shard is lost, the annotation nstance.dev/confirm-abandon=a/unknown gives up an unknown number of instances`}},
		"it is being deleted and the shard rejected": {going, connected(smaller), outcome{step: remove, err: status.Error(codes.FailedPrecondition, "still in use")}, nil, []string{
			"ShardReachable=True Reachable: ", "Ready=False Deleting: the shard has not confirmed the deletion of the group: still in use"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := newStatus(test.object, test.seen, test.done, test.rejected)
			if words := describe(got.Conditions); !slices.Equal(words, test.want) {
				t.Errorf("got\n%q, want\n%q", words, test.want)
			}
			if got.ObservedGeneration != test.object.Generation {
				t.Errorf("observed generation %d", got.ObservedGeneration)
			}
		})
	}
}

// Settings that the server's configuration sets are not sent. They would take effect when the
// group leaves that configuration, and replace every instance.
func TestStatusOfSettingsThatAStaticGroupCannotHave(t *testing.T) {
	const refused = "the group is static, and its server's configuration sets template and subnets; remove from the pool's spec: "
	for name, test := range map[string]struct {
		change func(*v1beta1.NstanceShardGroup)
		group  func(*shard.Group)
		want   string
	}{
		"those of the server":   {func(*v1beta1.NstanceShardGroup) {}, func(*shard.Group) {}, ""},
		"none":                  {func(o *v1beta1.NstanceShardGroup) { o.Spec.Template, o.Spec.Subnets = "", nil }, func(*shard.Group) {}, ""},
		"another type":          {func(o *v1beta1.NstanceShardGroup) { o.Spec.InstanceType = "" }, func(*shard.Group) {}, ""},
		"of a group not static": {func(o *v1beta1.NstanceShardGroup) { o.Spec.Template = "" }, func(g *shard.Group) { g.Static = false }, ""},
		"another template": {func(o *v1beta1.NstanceShardGroup) { o.Spec.Template = "other" }, func(*shard.Group) {},
			refused + `template "other", the server has "standard"`},
		"another template and other subnets, while the size is sent": {func(o *v1beta1.NstanceShardGroup) {
			o.Spec.Template, o.Spec.Subnets = "other", []v1beta1.Identifier{"public"}
		}, func(g *shard.Group) { g.Size = 1 },
			refused + `template "other", the server has "standard"; subnets ["public"], the server has ["private"]`},
	} {
		t.Run(name, func(t *testing.T) {
			object := newObject()
			test.change(object)
			group := reported()
			group.Static = true
			test.group(group)
			status := newStatus(object, connected(group), outcome{}, nil)
			want := "True ConfigAccepted: "
			if test.want != "" {
				want = "False ConfigRejected: " + test.want
			}
			words := describe(status.Conditions)
			if !slices.Contains(words, "ConfigValid="+want) {
				t.Errorf("the conditions are %q, want ConfigValid=%s", words, want)
			}
			if rejected := slices.Contains(words, "Ready=False ConfigRejected: "+test.want); rejected != (test.want != "") {
				t.Errorf("the conditions are %q", words)
			}
		})
	}
}

// settled returns a shard group whose status is up to date.
func settled() *v1beta1.NstanceShardGroup {
	object := newObject()
	object.Status = newStatus(object, connected(reported()), outcome{now: then}, nil)
	return object
}

func TestStatusTakesTheReport(t *testing.T) {
	got := settled().Status
	if !slices.Equal(got.ProviderIDs, []string{"i-1", "i-2", "i-3"}) || *got.Replicas != 3 || *got.IsStatic || !got.LastSyncTime.Equal(&then) {
		t.Errorf("got %+v", got)
	}
	if got.Config == nil || got.Config.Template != "standard" || got.Config.InstanceType != "large" ||
		!slices.Equal(got.Config.Subnets, []string{"private"}) || got.Config.Vars["a"] != "1" {
		t.Errorf("got the configuration %+v", got.Config)
	}
}

func TestStatusKeepsFieldsThatTheShardHasNotReported(t *testing.T) {
	for name, seen := range map[string]observation{
		"away since the operator started": {configured: true, lost: lost},
		"being connected":                 {configured: true},
		"removed from the configuration":  {},
	} {
		object := settled()
		got := newStatus(object, seen, outcome{now: metav1.NewTime(then.Add(time.Hour))}, nil)
		before := object.Status
		if !slices.Equal(got.ProviderIDs, before.ProviderIDs) || *got.Replicas != *before.Replicas ||
			!equality.Semantic.DeepEqual(got.Config, before.Config) || !got.LastSyncTime.Equal(before.LastSyncTime) {
			t.Errorf("%s: got %+v of %+v", name, got, before)
		}
	}
}

// The order stays with the provider ids while the shard is away.
func TestStatusHasTheDeletionOrder(t *testing.T) {
	group := reported()
	group.Instances = []shard.Instance{{ID: "knd1", ProviderID: "i-1"}, {ID: "knd2", ProviderID: "i-2"}, {ID: "knd3", ProviderID: "i-3"}}
	group.DeletionOrder = []shard.NextDeletion{{InstanceID: "knd2", Reason: "expired"}, {InstanceID: "knd1"}}
	object, want := newObject(), []v1beta1.NextDeletion{{Instance: "knd2", ProviderID: "i-2", Reason: "expired"}, {Instance: "knd1", ProviderID: "i-1"}}
	object.Status = newStatus(object, connected(group), outcome{now: then}, nil)
	if !slices.Equal(object.Status.DeletionOrder, want) {
		t.Errorf("got %+v", object.Status.DeletionOrder)
	}
	if away := newStatus(object, observation{configured: true, lost: lost}, outcome{now: then}, nil); !slices.Equal(away.DeletionOrder, want) {
		t.Errorf("got %+v while the shard is away", away.DeletionOrder)
	}
	if none := newStatus(object, connected(nil), outcome{now: then}, nil); none.DeletionOrder != nil {
		t.Errorf("got %+v of a group that does not exist", none.DeletionOrder)
	}
}

func TestStatusHasTheCandidates(t *testing.T) {
	object, group := newObject(), reported()
	group.CandidateUse = []shard.CandidateUse{{Name: "spot", InstanceType: "m7i.large", Market: "Spot", Instances: 2, Unavailable: "none left"}}
	object.Status = newStatus(object, connected(group), outcome{now: then}, nil)
	want := []v1beta1.CandidateUse{{Name: "spot", InstanceType: "m7i.large", Market: "Spot", Replicas: 2, Unavailable: "none left"}}
	require.Equal(t, want, object.Status.Candidates)
	require.Equal(t, want, newStatus(object, observation{configured: true, lost: lost}, outcome{now: then}, nil).Candidates, "the shard is away")
	require.Empty(t, newStatus(object, connected(nil), outcome{now: then}, nil).Candidates, "the group does not exist")
	require.Empty(t, newStatus(object, connected(reported()), outcome{now: then}, nil).Candidates, "the group has no candidates any more")
}

func TestStatusForgetsWhatTheShardNoLongerHas(t *testing.T) {
	got := newStatus(settled(), connected(nil), outcome{now: then}, nil)
	if len(got.ProviderIDs) > 0 || *got.Replicas != 0 || got.Config != nil {
		t.Errorf("got %+v", got)
	}
}

// A shard that is being connected does not change the status of a group.
func TestStatusStaysWhileTheShardIsBeingConnected(t *testing.T) {
	object := settled()
	if got := newStatus(object, observation{configured: true}, outcome{now: metav1.Now()}, nil); !equality.Semantic.DeepEqual(got, object.Status) {
		t.Errorf("got %+v of %+v", got, object.Status)
	}

	object.Generation++
	got := newStatus(object, observation{configured: true}, outcome{now: metav1.Now()}, nil)
	if condition := meta.FindStatusCondition(got.Conditions, v1beta1.ConditionReady); condition.Status != metav1.ConditionUnknown {
		t.Errorf("for a spec that the shard has not seen Ready is %s", condition.Status)
	}
}

func TestStatusSortsProviderIDs(t *testing.T) {
	group := changed(reported(), func(g *shard.Group) { g.ProviderIDs = []string{"i-3", "i-1", "i-2"} })
	object := settled()
	if got := newStatus(object, connected(group), outcome{now: metav1.Now()}, nil); !equality.Semantic.DeepEqual(got, object.Status) {
		t.Errorf("another order of ids made %+v of %+v", got, object.Status)
	}
	if group.ProviderIDs[0] != "i-3" {
		t.Error("what belongs to the cache was changed")
	}
}

func TestLastSyncTimeMovesOnlyWithTheReport(t *testing.T) {
	later := outcome{now: metav1.NewTime(then.Add(time.Hour))}
	object := settled()
	for name, test := range map[string]struct {
		seen  observation
		moves bool
	}{
		"nothing new":     {connected(reported()), false},
		"the shard left":  {observation{configured: true, synced: true, lost: lost, group: reported()}, false},
		"one more server": {connected(changed(reported(), func(g *shard.Group) { g.ActualSize = 4 })), true},
		"another id":      {connected(changed(reported(), func(g *shard.Group) { g.ProviderIDs = []string{"i-9"} })), true},
		"another config":  {connected(changed(reported(), func(g *shard.Group) { g.Vars = nil })), true},
	} {
		got := newStatus(object, test.seen, later, nil).LastSyncTime
		if moved := !got.Equal(&then); moved != test.moves {
			t.Errorf("%s: moved %t", name, moved)
		}
	}
}

// A rejection of an earlier spec does not apply to this one.
func TestStatusOfASpecAfterARefusedOne(t *testing.T) {
	object := newObject()
	smaller := connected(changed(reported(), func(g *shard.Group) { g.Size = 1 }))
	object.Status = newStatus(object, smaller, outcome{}, &rejection{revision: revisionOf(newObject()), message: "no such template"})
	object.Generation++
	got := newStatus(object, smaller, outcome{step: upsert, err: status.Error(codes.Unimplemented, "no such call")}, nil)
	if condition := meta.FindStatusCondition(got.Conditions, v1beta1.ConditionReady); condition.Reason != v1beta1.ReasonUpsertFailed {
		t.Errorf("Ready says %s: %s", condition.Reason, condition.Message)
	}
}

func TestApplyStatusHasAllFields(t *testing.T) {
	object := settled()
	object.Status.IsStatic = ptr.To(true)
	applied := applyStatus(object, object.Status)
	if *applied.UID != object.UID || *applied.Name != object.Name {
		t.Errorf("of object %+v", applied.ObjectMetaApplyConfiguration)
	}
	got := applied.Status
	if *got.Replicas != 3 || !*got.IsStatic || len(got.ProviderIDs) != 3 || *got.Config.Template != "standard" || got.Config.Vars["a"] != "1" ||
		len(got.Config.Subnets) != 1 || *got.Config.InstanceType != "large" || !got.LastSyncTime.Equal(&then) ||
		*got.ObservedGeneration != 1 || len(got.Conditions) != 4 {
		t.Errorf("got %+v", got)
	}
}

const blocked = `Pod "shop/cart-0" is kept on Node "knd1" by PodDisruptionBudget "cart"`

// blockedDrain is an entry with the message blocked.
var blockedDrain = v1beta1.BlockedDrain{
	Instance: "knd1", Node: "knd1", Pod: &v1beta1.BlockingPod{Namespace: "shop", Name: "cart-0"}, PodDisruptionBudgets: []string{"cart"},
	Reason: v1beta1.ReasonPodNotEvictable, Message: blocked, Since: then, OtherReasons: 2,
}

// oneBlocked are three drains, of which one is blocked.
var oneBlocked = drains{draining: 3, blocked: 1, list: []v1beta1.BlockedDrain{blockedDrain}}

// draining returns the observation of a shard in order with drains.
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
		"one of several is blocked": {drains{}, oneBlocked, was},
		"the blocked one gets on":   {oneBlocked, drains{draining: 2}, "DrainsProgressing=True Draining: "},
		"one waits":                 {drains{draining: 2}, drains{draining: 1, waiting: []string{"waits"}}, "DrainsProgressing=True Draining: waits"},
		"one waits, one is blocked": {drains{}, drains{draining: 3, blocked: 1, list: oneBlocked.list, waiting: []string{"waits"}}, was},
		"many wait":                 {drains{}, drains{draining: 5, waiting: []string{"1", "2", "3", "4", "5"}}, "DrainsProgressing=True Draining: 1; 2; 3; and 2 more"},
		"all are done":              {oneBlocked, drains{}, "DrainsProgressing=True NoDrains: "},
		"nothing new":               {oneBlocked, oneBlocked, was},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			object := newObject()
			object.Status = newStatus(object, draining(test.before), outcome{now: then}, nil)
			got := newStatus(object, draining(test.seen), outcome{now: metav1.NewTime(then.Add(time.Hour))}, nil)
			if *got.DrainingReplicas != int32(test.seen.draining) || *got.BlockedReplicas != int32(test.seen.blocked) {
				t.Errorf("%d drain and %d are blocked, want %+v", *got.DrainingReplicas, *got.BlockedReplicas, test.seen)
			}
			want := []string{"ShardReachable=True Reachable: ", "ConfigValid=True ConfigAccepted: ", "Ready=True Ready: "}
			if test.seen.blocked > 0 {
				want[2] = "Ready=False DrainBlocked: a drain is blocked; status.blockedDrains has the reason"
			}
			if test.want != "" {
				want = append(want, test.want)
			}
			if !equality.Semantic.DeepEqual(got.BlockedDrains, test.seen.list) {
				t.Errorf("blocked drains %+v, want %+v", got.BlockedDrains, test.seen.list)
			}
			words := describe(got.Conditions)
			if slices.Sort(words); !slices.Equal(words, slices.Sorted(slices.Values(want))) {
				t.Errorf("got %q, want %q", words, want)
			}
			if !got.LastSyncTime.Equal(&then) {
				t.Error("what the operator does itself was taken for news from the server")
			}
			if same := equality.Semantic.DeepEqual(test.before.list, test.seen.list) && test.before.draining == test.seen.draining; same != equality.Semantic.DeepEqual(got, object.Status) {
				t.Errorf("from %+v came %+v", object.Status, got)
			}
		})
	}
}

// After a start the drains of a shard are not known, but they have not ended.
func TestStatusKeepsDrainsOfAShardThatIsBeingConnected(t *testing.T) {
	object := newObject()
	object.Status = newStatus(object, draining(oneBlocked), outcome{now: then}, nil)
	for name, seen := range map[string]observation{
		"being connected": {configured: true},
		"away":            {configured: true, lost: lost},
	} {
		got := newStatus(object, seen, outcome{now: metav1.Now()}, nil)
		if *got.DrainingReplicas != 3 || *got.BlockedReplicas != 1 || !slices.Contains(describe(got.Conditions), "DrainsProgressing=False DrainBlocked: "+blocked) {
			t.Errorf("%s: %d drain, %d are blocked, %q", name, *got.DrainingReplicas, *got.BlockedReplicas, describe(got.Conditions))
		}
	}
}

// The groups of a shard are known before its drains.
func TestStatusKeepsDrainsUntilTheShardHasReportedThem(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.drains = oneBlocked
	h.Expect(writeStatus)

	// The operator starts again.
	h.drains = drains{}
	h.a().Settled = false
	h.Expect()
	if got := h.object().Status; *got.DrainingReplicas != 3 || *got.BlockedReplicas != 1 || !slices.Contains(h.conditions(), "DrainsProgressing=False DrainBlocked: "+blocked) {
		t.Errorf("%d drain, %d are blocked, %q", *got.DrainingReplicas, *got.BlockedReplicas, h.conditions())
	}
	// Known drains are reported.
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
	if got := h.object().Status; *got.DrainingReplicas != 0 || *got.BlockedReplicas != 0 {
		t.Errorf("%d drain, %d are blocked", *got.DrainingReplicas, *got.BlockedReplicas)
	}
	h.a().Session, h.a().Settled = 1, false
	h.drains = drains{draining: 2}
	h.Expect(writeStatus)
	h.drains = drains{}
	h.Expect(writeStatus)
}

// A new shard group has no former drains.
func TestStatusOfANewGroupHasNoDrains(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.a().Settled = false
	h.Expect(writeStatus)
	if got := h.object().Status; got.DrainingReplicas == nil || *got.DrainingReplicas != 0 {
		t.Errorf("draining is %v", got.DrainingReplicas)
	}
}

// A drain continues while its shard is disconnected, and so does its report.
func TestStatusHasDrainsOfADisconnectedShard(t *testing.T) {
	object := newObject()
	object.Status = newStatus(object, draining(drains{draining: 3}), outcome{now: then}, nil)
	seen := observation{configured: true, synced: true, lost: lost, group: reported(), drains: oneBlocked}
	if got := newStatus(object, seen, outcome{now: then}, nil); *got.BlockedReplicas != 1 {
		t.Errorf("%d are blocked, want 1", *got.BlockedReplicas)
	}
}

func TestDrainsAreWrittenOncePerChange(t *testing.T) {
	object := newObject()
	object.Status = newStatus(object, connected(reported()), outcome{now: then}, nil)
	h := newHarness(t, object)
	h.setGroup(reported())
	h.Expect()

	h.drains = drains{draining: 2, blocked: 1, list: oneBlocked.list}
	h.Expect(writeStatus)
	h.Expect()
	got := h.object().Status
	if *got.DrainingReplicas != 2 || *got.BlockedReplicas != 1 || !slices.Contains(h.conditions(), "DrainsProgressing=False DrainBlocked: "+blocked) {
		t.Errorf("got %+v", got)
	}
	// The event about a drain is recorded for the Node.
	if events := h.Events(); len(events) > 0 {
		t.Errorf("events %q", events)
	}

	h.drains = drains{}
	h.Expect(writeStatus)
	h.Expect()
}

// Instances of a group that is being deleted are drained like any other.
func TestStatusOfDrainsOfAGroupThatIsBeingDeleted(t *testing.T) {
	seen := connected(changed(reported(), func(g *shard.Group) { g.Deleting = true }))
	seen.drains = drains{draining: 3}
	got := newStatus(controllertest.Deleting(newObject()), seen, outcome{now: then}, nil)
	if *got.DrainingReplicas != 3 || !slices.Contains(describe(got.Conditions), "DrainsProgressing=True Draining: ") {
		t.Errorf("%d drain, %q", *got.DrainingReplicas, describe(got.Conditions))
	}
}

func TestApplyStatusHasDrains(t *testing.T) {
	object := newObject()
	object.Status = newStatus(object, draining(oneBlocked), outcome{now: then}, nil)
	applied := applyStatus(object, object.Status).Status
	encoded, err := json.Marshal(applied.BlockedDrains)
	require.NoError(t, err)
	var decoded []v1beta1.BlockedDrain
	require.NoError(t, json.Unmarshal(encoded, &decoded))
	if !equality.Semantic.DeepEqual(decoded, oneBlocked.list) {
		t.Errorf("applied %s", encoded)
	}
	if *applied.DrainingReplicas != 3 || *applied.BlockedReplicas != 1 ||
		*applied.Conditions[0].Type != v1beta1.ConditionDrainsProgressing {
		t.Errorf("got %+v", applied)
	}
}

// The condition has the first entries, and counts the drains that the list does not have too.
func TestMessageOfDrainsIsWrittenFromTheList(t *testing.T) {
	entry := func(instance string) v1beta1.BlockedDrain {
		return v1beta1.BlockedDrain{Instance: instance, Reason: v1beta1.ReasonRequestsFailing, Message: instance + ": a; b", Since: then}
	}
	four := []v1beta1.BlockedDrain{entry("d"), entry("c"), entry("b"), entry("a")}
	for name, test := range map[string]struct {
		seen drains
		want string
	}{
		"no drains":          {drains{}, ""},
		"one":                {drains{draining: 1, blocked: 1, list: four[:1]}, "d: a; b"},
		"as many as listed":  {drains{draining: 3, blocked: 3, list: four[:3]}, "d: a; b; c: a; b; b: a; b"},
		"more than listed":   {drains{draining: 4, blocked: 4, list: four}, "d: a; b; c: a; b; b: a; b; and 1 more"},
		"more than the list": {drains{draining: 99, blocked: 50, list: four}, "d: a; b; c: a; b; b: a; b; and 47 more"},
	} {
		if got := drainsMessage(test.seen); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// The API server may store the entries in another order, which must not cause a write at each
// sync.
func TestOrderOfBlockedDrainsIsNoChange(t *testing.T) {
	other := blockedDrain
	other.Instance = "knd0"
	two := drains{draining: 2, blocked: 2, list: []v1beta1.BlockedDrain{blockedDrain, other}}
	object := newObject()
	object.Status = newStatus(object, draining(two), outcome{now: then}, nil)
	object.Status.BlockedDrains = []v1beta1.BlockedDrain{other, blockedDrain}
	h := newHarness(t, object)
	h.setGroup(reported())
	h.drains = two
	h.Expect()
	h.drains.list = []v1beta1.BlockedDrain{other, blockedDrain}
	h.drains.list[1].OtherReasons++
	h.Expect(writeStatus)
	h.Expect()
}
