// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// addEvent adds an event of the operator so long ago.
func addEvent(s *objects.Snapshot, ago time.Duration, kind, reason, note string) {
	at := plugintest.Ago(ago)
	s.RecentEvents.Items = append(s.RecentEvents.Items, eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprintf("event-%d", len(s.RecentEvents.Items)))},
		Type:       kind, Reason: reason, Note: note, EventTime: metav1.NewMicroTime(at.Time),
		Regarding: corev1.ObjectReference{Kind: v1beta1.PoolKind, Name: plugintest.Pool},
	})
}

// blocked has a drain that a budget blocks, and a Pod that leaves.
func blocked() *objects.Snapshot {
	s := plugintest.AtRest()
	plugintest.Drain(s, "a", "a1", "scale-down")
	plugintest.AddPod(s, "a1", "web-0", nil)
	plugintest.AddPod(s, "a1", "web-1", nil)
	plugintest.AddBudget(s, "keep-web", "web-0", 0)
	plugintest.AddVolume(s, "a1", "data")
	addEvent(s, 2*time.Minute, corev1.EventTypeNormal, "Scaled", "from 5 to 4 instances")
	addEvent(s, time.Minute, corev1.EventTypeWarning, "DrainBlocked", "Pod web/web-0 cannot be evicted")
	return s
}

// cases are snapshots by the name of their golden file.
var cases = map[string]func() *objects.Snapshot{
	"at-rest": plugintest.AtRest,
	"blocked": blocked,
	"candidates": func() *objects.Snapshot {
		s := plugintest.AtRest()
		plugintest.Candidates(s)
		return s
	},
	"scaling": func() *objects.Snapshot {
		s := plugintest.AtRest()
		*s.Pools.Items[0].Status.DesiredReplicas = 5
		plugintest.SetCondition(&s.Pools.Items[0].Status.Conditions, v1beta1.ConditionScalingUp, metav1.ConditionTrue, v1beta1.ReasonScalingUp,
			"fewer instances run than are wanted on b")
		plugintest.Group(s, "b").Spec.Size = 2
		plugintest.AddOnDemand(s)
		return s
	},
	"shard-away": func() *objects.Snapshot {
		s := plugintest.AtRest()
		for _, kind := range []string{v1beta1.ConditionReady, v1beta1.ConditionShardReachable} {
			plugintest.SetCondition(&plugintest.Group(s, "b").Status.Conditions, kind, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable, "connection refused")
		}
		plugintest.SetCondition(&s.Pools.Items[0].Status.Conditions, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable, "b: connection refused")
		return s
	},
	"nodes-forbidden": func() *objects.Snapshot {
		s := plugintest.AtRest()
		s.Nodes = objects.Unread[corev1.Node]("forbidden to list nodes")
		s.RecentNodeEvents = objects.Unread[eventsv1.Event]("forbidden to list events")
		return s
	},
	"pods-forbidden": func() *objects.Snapshot {
		s := blocked()
		s.Pods["a1"] = objects.Unread[corev1.Pod]("forbidden to list pods")
		return s
	},
	"shard-groups-forbidden": func() *objects.Snapshot {
		s := plugintest.AtRest()
		s.ShardGroups = objects.Unread[v1beta1.NstanceShardGroup]("forbidden to list nstanceshardgroups")
		s.NstanceMachines = objects.Unread[v1beta1.NstanceMachine]("forbidden to list nstancemachines")
		return s
	},
	"no-pools": func() *objects.Snapshot { return &objects.Snapshot{Now: plugintest.Now} },
}

func TestFragments(t *testing.T) {
	for name, snapshot := range cases {
		t.Run(name, func(t *testing.T) {
			v := newView(snapshot())
			v.Source = "dev"
			plugintest.Golden(t, name+".html", string(renderFragment(&v)))
		})
	}
}

// A user who can write an object must not be able to write the page.
func TestMarkupIsEscaped(t *testing.T) {
	const markup = `"><script>alert(1)</script><img src=x onerror=alert(1)>&amp;`
	s := blocked()
	s.Namespace = markup
	pool := &s.Pools.Items[0]
	plugintest.SetCondition(&pool.Status.Conditions, v1beta1.ConditionReady, metav1.ConditionFalse, markup, markup)
	pool.Name = markup
	s.ShardGroups.Items[0].Name = markup
	s.ShardGroups.Items[1].Spec.Shard = markup
	s.ShardGroups.Items[2].Status.ProviderIDs[0] = "kwok:///c/" + markup
	s.ShardGroups.Items[2].Spec.Loan = plugintest.Borrowed()
	s.ShardGroups.Items[2].Spec.Loan.Shards[0] = markup
	s.Pods["a1"].Items[0].Name, s.Pods["a1"].Items[0].Namespace = markup, "web"
	s.Budgets["web"].Items[0].Name = markup
	*s.Attachments.Items[0].Spec.Source.PersistentVolumeName = markup
	single := plugintest.AddOnDemand(s)
	single.Name, single.Annotations[v1beta1.AnnotationPodName] = markup, markup
	for i := range s.RecentEvents.Items {
		event := &s.RecentEvents.Items[i]
		event.UID, event.Reason, event.Note, event.Regarding.Name = markup, markup, markup, markup
	}
	s.Machines.Unknown, s.RecentNodeEvents.Unknown = markup, markup
	v := newView(s)
	v.Source, v.Failure = markup, markup
	var page strings.Builder
	if err := renderPage(&page, &v); err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{"<script>", "<img", "onerror=alert(1)>"} {
		if strings.Contains(page.String(), raw) {
			t.Errorf("the page has %s", raw)
		}
	}
	if got := strings.Count(page.String(), "&lt;script&gt;alert(1)&lt;/script&gt;"); got < 20 {
		t.Errorf("the escaped markup is on the page %d times, want it everywhere", got)
	}
}

// What blocks drains is first on the page, and limited. Pools that need attention are first in the index.
func TestTopOfThePage(t *testing.T) {
	v := view{
		Pools: []poolView{{Key: "a", State: badge{toneOK, "Ready"}}, {Key: "b", State: badge{toneBusy, "ScalingUp"}}, {Key: "c", State: badge{toneBad, "DrainBlocked"}}},
	}
	for i := range maxBlocked + 2 {
		v.Drains = append(v.Drains, drainView{Key: fmt.Sprint("drain-", i), Node: fmt.Sprint("n", i), State: badge{toneBad, "Blocked"}, Rest: "Pods unknown"})
	}
	v.Drains[0].State.Tone = toneBusy
	v.Drains[1].Blocking = []podView{{"web/a", "is blocked"}, {"web/b", "is blocked"}}
	v.addBlocked()
	v.addIndex()
	if len(v.Blocked) != maxBlocked || v.BlockedOmitted != 1 {
		t.Errorf("%d blocked drains, %d omitted", len(v.Blocked), v.BlockedOmitted)
	}
	if want := (blockedView{"blocked-drain-1", "drain-1", "n1", "Pod web/a: is blocked, and 1 other Pod"}); v.Blocked[0] != want {
		t.Errorf("the first blocked drain is %+v", v.Blocked[0])
	}
	if v.Blocked[1].Text != "Pods unknown" {
		t.Errorf("the second blocked drain is %+v", v.Blocked[1])
	}
	var keys []string
	for _, link := range v.Index {
		keys = append(keys, link.Key)
	}
	if got := strings.Join(keys, " "); got != "c b a" {
		t.Errorf("the index is %s", got)
	}
	single := view{Pools: v.Pools[:1]}
	if single.addIndex(); single.Index != nil {
		t.Error("an index of one pool")
	}
}

// The summary is read aloud when it changes: time alone must not change it.
func TestSummaryHasNoAges(t *testing.T) {
	for name, snapshot := range cases {
		s := snapshot()
		now := newView(s).Summary
		s.Now = s.Now.Add(42 * time.Second)
		if later := newView(s).Summary; later != now {
			t.Errorf("%s: %q becomes %q", name, now, later)
		}
	}
}

// Nothing that is unknown looks as if it did not exist.
func TestUnknownIsNotMissing(t *testing.T) {
	for name, absent := range map[string][]string{
		"nodes-forbidden":        {"No drains are in progress", "no events", ">none<"},
		"pods-forbidden":         {"No Pods have to leave"},
		"shard-groups-forbidden": {"No shard runs this pool", "No drains are in progress"},
	} {
		v := newView(cases[name]())
		page := string(renderFragment(&v))
		for _, text := range absent {
			if strings.Contains(page, text) {
				t.Errorf("%s: the page has %q", name, text)
			}
		}
		if !strings.Contains(page, "unknown: forbidden to list ") {
			t.Errorf("%s: the page does not have what is unknown", name)
		}
	}
}

// The page has the last events, and the number of earlier events.
func TestLastEvents(t *testing.T) {
	s := plugintest.AtRest()
	for i := range maxEvents + 3 {
		addEvent(s, time.Duration(i)*time.Minute, corev1.EventTypeNormal, "Scaled", fmt.Sprint("note ", i, "."))
	}
	v := newView(s)
	if len(v.Events) != maxEvents || v.EventsOmitted != 3 || v.Events[0].Note != "note 0." || v.Events[maxEvents-1].Note != fmt.Sprint("note ", maxEvents-1, ".") {
		t.Errorf("%d events, %d omitted: %+v", len(v.Events), v.EventsOmitted, v.Events)
	}
}
