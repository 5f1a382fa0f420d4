// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package dashboard serves one page that shows pools, their shards, instances and Nodes,
// the drains in progress, and the last events (docs/kubectl-plugin.md#dashboard). It only
// reads.
package dashboard

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/status"
)

// view has the contents of the page. All texts are plain: the templates escape them.
type view struct {
	// Source names the cluster.
	Source string
	// Scope is the namespace of the objects.
	Scope string
	// ReadAt is when the objects were read, zero if they never were.
	ReadAt time.Time
	// Failure is the error of the last read, empty after a success. After a failure the page
	// shows the objects of an earlier read.
	Failure string
	// Summary has no ages, so that it changes only if the state changes.
	Summary     string
	SummaryTone tone
	// Unknown are why something could not be read.
	Unknown []string
	// Blocked are the first blocked drains, and BlockedOmitted is the number of others.
	Blocked        []blockedView
	BlockedOmitted int

	// Index has a link to each pool, and is empty if there is only one. Pools that need attention are first.
	Index          []poolLink
	Pools          []poolView
	Singles        []singleView
	SinglesUnknown string
	Drains         []drainView
	DrainsUnknown  string
	Events         []eventView
	// EventsOmitted is the number of earlier events that were read.
	EventsOmitted int
	EventsUnknown []string
}

// figure is a number or a word with its label.
type figure struct{ Label, Value string }

// newView returns the view of a snapshot.
func newView(s *objects.Snapshot) view {
	built := status.Build(s)
	options := status.PrintOptions{Now: s.Now}
	v := view{
		Scope: "all namespaces", ReadAt: s.Now, Summary: summary(&built), SummaryTone: summaryTone(&built), Unknown: built.Unknown,
		Pools: poolViews(&built, options), Singles: singleViews(&built, options), SinglesUnknown: built.OnDemandUnknown,
		Drains: drainViews(built.Drains, options), DrainsUnknown: built.DrainsUnknown,
	}
	if s.Namespace != "" {
		v.Scope = "namespace " + s.Namespace
	}
	v.addBlocked()
	v.addIndex()
	v.addEvents(s, options)
	return v
}

// maxBlocked is the number of blocked drains that the top of the page shows.
const maxBlocked = 5

// addBlocked adds what blocks drains, which comes before all else on the page.
func (v *view) addBlocked() {
	for i := range v.Drains {
		drain := &v.Drains[i]
		if drain.State.Tone != toneBad {
			continue
		}
		if len(v.Blocked) == maxBlocked {
			v.BlockedOmitted++
			continue
		}
		v.Blocked = append(v.Blocked, blockedView{Key: "blocked-" + drain.Key, Target: drain.Key, Node: drain.Node, Text: blockedText(drain)})
	}
}

// addIndex adds the links to the pools, if there are several.
func (v *view) addIndex() {
	if len(v.Pools) < 2 {
		return
	}
	for i := range v.Pools {
		v.Index = append(v.Index, poolLink{v.Pools[i].Key, v.Pools[i].Name, v.Pools[i].State})
	}
	slices.SortStableFunc(v.Index, func(a, b poolLink) int { return severity[b.State.Tone] - severity[a.State.Tone] })
}

// maxNamed is the number of pools that the summary names.
const maxNamed = 3

// summary returns sentences about all pools. Screen readers read them aloud when they
// change, so they have no ages.
func summary(built *status.Status) string {
	return poolsSentence(built.Pools) + " " + nodesSentence(built) + " " + drainsSentence(built)
}

// summaryTone returns the tone that needs most attention.
func summaryTone(built *status.Status) tone {
	result := toneOK
	if len(built.Unknown) > 0 {
		result = toneUnknown
	}
	for i := range built.Pools {
		result = worse(result, conditionsTone(built.Pools[i].Problems))
	}
	for i := range built.Drains {
		result = worse(result, drainTone(built.Drains[i].State))
	}
	return result
}

func poolsSentence(pools []status.Pool) string {
	var others []string
	for i := range pools {
		if text := pools[i].Text(); text != "Ready" {
			others = append(others, pools[i].Name+" ("+text+")")
		}
	}
	switch {
	case len(pools) == 0:
		return "There are no pools."
	case len(others) == 0 && len(pools) == 1:
		return fmt.Sprintf("Pool %s has settled.", pools[0].Name)
	case len(pools) == 1:
		return fmt.Sprintf("Pool %s has not settled: %s.", pools[0].Name, pools[0].Text())
	case len(others) == 0:
		return fmt.Sprintf("All %d pools have settled.", len(pools))
	}
	text := fmt.Sprintf("%d of %d pools %s not settled: ", len(others), len(pools), verb(len(others), "has", "have"))
	if len(others) > maxNamed {
		return fmt.Sprintf("%s%s, and %d more.", text, strings.Join(others[:maxNamed], ", "), len(others)-maxNamed)
	}
	return text + strings.Join(others, ", ") + "."
}

func nodesSentence(built *status.Status) string {
	if built.DrainsUnknown != "" {
		return "Nodes are unknown: " + built.DrainsUnknown + "."
	}
	var ready, instances, wanted int
	for i := range built.Pools {
		for j := range built.Pools[i].Shards {
			shard := &built.Pools[i].Shards[j]
			instances += len(shard.Instances)
			wanted += awaited(shard)
			if shard.ReadyNodes != nil {
				ready += int(*shard.ReadyNodes)
			}
		}
	}
	text := fmt.Sprintf("%d of %d %s a Ready Node", ready, instances, verb(instances, "instance has", "instances have"))
	if wanted > 0 {
		text += fmt.Sprintf(", and %d more %s wanted", wanted, verb(wanted, "is", "are"))
	}
	return text + "."
}

func drainsSentence(built *status.Status) string {
	count, blocked := len(built.Drains), 0
	for i := range built.Drains {
		if built.Drains[i].State == status.DrainBlocked {
			blocked++
		}
	}
	switch {
	case built.DrainsUnknown != "":
		return "Drains are unknown: " + built.DrainsUnknown + "."
	case count == 0:
		return "No drains are in progress."
	case blocked == 0:
		return fmt.Sprintf("%d %s in progress.", count, verb(count, "drain is", "drains are"))
	}
	return fmt.Sprintf("%d of %d %s blocked.", blocked, count, verb(count, "drain is", "drains are"))
}

// verb returns the form for a number.
func verb(n int, singular, plural string) string {
	if n == 1 {
		return singular
	}
	return plural
}

// maxEvents is the number of events that the page shows.
const maxEvents = 25

// eventView is an event.
type eventView struct {
	Key     string
	At      time.Time
	Age     string
	Warning bool
	Kind    string
	Object  string
	Reason  string
	Note    string
}

// addEvents adds the last events, the latest first.
func (v *view) addEvents(s *objects.Snapshot, options status.PrintOptions) {
	for _, unknown := range []string{s.RecentEvents.Unknown, s.RecentNodeEvents.Unknown} {
		if unknown != "" && !slices.Contains(v.EventsUnknown, unknown) {
			v.EventsUnknown = append(v.EventsUnknown, unknown)
		}
	}
	all := slices.Concat(s.RecentEvents.Items, s.RecentNodeEvents.Items)
	slices.SortStableFunc(all, func(a, b eventsv1.Event) int { return objects.LastSeen(&b).Compare(objects.LastSeen(&a)) })
	if len(all) > maxEvents {
		v.EventsOmitted, all = len(all)-maxEvents, all[:maxEvents]
	}
	for i := range all {
		event := &all[i]
		at := objects.LastSeen(event)
		v.Events = append(v.Events, eventView{
			Key: string(event.UID), At: at, Age: options.Age(at), Warning: event.Type == corev1.EventTypeWarning,
			Kind: event.Regarding.Kind, Object: event.Regarding.Name, Reason: event.Reason, Note: event.Note,
		})
	}
}

// tone is the amount of attention that a state needs. The page shows it by a symbol and a color,
// always beside words.
type tone string

const (
	toneOK      tone = "ok"
	toneBusy    tone = "busy"
	toneUnknown tone = "unknown"
	toneWarning tone = "warning"
	toneBad     tone = "bad"
	// toneWanted is the tone of an instance that is wanted and not reported.
	toneWanted tone = "wanted"
)

// badge is a state.
type badge struct {
	Tone tone
	Text string
}

// severity orders tones.
var severity = map[tone]int{toneOK: 0, toneBusy: 1, toneUnknown: 2, toneWarning: 3, toneBad: 4}

// worse returns the tone that needs more attention.
func worse(a, b tone) tone {
	if severity[b] > severity[a] {
		return b
	}
	return a
}

// reasonTones are the tones of reasons that are progress, or that need an administrator. All
// other reasons are warnings.
var reasonTones = map[string]tone{
	v1beta1.ReasonScalingUp:         toneBusy,
	v1beta1.ReasonWaiting:           toneBusy,
	v1beta1.ReasonProvisioning:      toneBusy,
	v1beta1.ReasonStabilizing:       toneBusy,
	v1beta1.ReasonMinReady:          toneBusy,
	v1beta1.ReasonInstanceNotReady:  toneBusy,
	v1beta1.ReasonRemoving:          toneBusy,
	v1beta1.ReasonDraining:          toneBusy,
	v1beta1.ReasonDeleting:          toneBusy,
	v1beta1.ReasonNotSynced:         toneBusy,
	v1beta1.ReasonWaitingForMachine: toneBusy,

	v1beta1.ReasonShardUnreachable:           toneBad,
	v1beta1.ReasonWorkloadClusterUnreachable: toneBad,
	v1beta1.ReasonWrongShard:                 toneBad,
	v1beta1.ReasonShardLimitExceeded:         toneBad,
	v1beta1.ReasonOtherCluster:               toneBad,
	v1beta1.ReasonDrainBlocked:               toneBad,
	v1beta1.ReasonServerDeleted:              toneBad,
}

// conditionsTone returns the tone of conditions that report a problem.
func conditionsTone(conditions []status.Condition) tone {
	result := toneOK
	for _, condition := range conditions {
		of, known := reasonTones[condition.Reason]
		switch {
		case known:
		case condition.Status == string(metav1.ConditionUnknown):
			of = toneUnknown
		default:
			of = toneWarning
		}
		result = worse(result, of)
	}
	return result
}

// instanceTone returns the tone of the state of an instance.
func instanceTone(instance *status.Instance) tone {
	switch instance.State {
	case status.StateRunning:
		return toneOK
	case status.StateUnknown:
		return toneUnknown
	case status.StateNoNode, status.StateNotReady:
		return toneWarning
	case status.StateAmbiguous, string(status.DrainBlocked):
		return toneBad
	}
	return toneBusy
}
