// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"cmp"
	"fmt"
	"strings"

	"nstance.dev/operator/pkg/plugin/status"
)

// drainView is a drain in progress.
type drainView struct {
	Key, Node string
	State     badge
	Facts     []figure
	Deadline  string
	// Elapsed and Total are the seconds since the drain began, and from then to its
	// deadline. Total is 0 if the start or the deadline is not known.
	Elapsed, Total int64
	// Messages are texts of the operator and of Cluster API about the drain.
	Messages []string
	// Blocking are the Pods that are blocked or may be blocked; Leaving are the other Pods.
	Blocking, Leaving []podView
	// Rest is a sentence about the Pods, empty if there are Pods to show.
	Rest string
}

// blockedView is a blocked drain, at the top of the page.
type blockedView struct{ Key, Target, Node, Text string }

// blockedText returns what blocks a drain: its first Pod, or else what is reported about it.
func blockedText(drain *drainView) string {
	if len(drain.Blocking) == 0 {
		return cmp.Or(strings.Join(drain.Messages, " "), drain.Rest, "no Pod is known that blocks it")
	}
	text := "Pod " + drain.Blocking[0].Name + ": " + drain.Blocking[0].Text
	if others := len(drain.Blocking) - 1; others > 0 {
		text += fmt.Sprintf(", and %d %s", others, verb(others, "other Pod", "other Pods"))
	}
	return text
}

// podView is a Pod that has to leave.
type podView struct{ Name, Text string }

func drainViews(found []status.Drain, options status.PrintOptions) []drainView {
	views := make([]drainView, 0, len(found))
	for i := range found {
		views = append(views, newDrain(&found[i], options))
	}
	return views
}

func newDrain(d *status.Drain, options status.PrintOptions) drainView {
	v := drainView{Key: "drain-" + d.Node, Node: d.Node, State: badge{drainTone(d.State), string(d.State)}, Messages: d.Messages}
	if d.State == status.DrainUnknown {
		v.State.Text = "unknown: " + d.WhyUnknown()
	}
	v.Facts = []figure{
		{"Pool", known(d.Pool, d.PoolUnknown)},
		{"Shard", cmp.Or(d.Shard, "unknown")},
		{"Reason", known(d.Reason, d.ReasonUnknown)},
		{"Requested by", strings.Join(d.By, ", ")},
		{"Volumes", volumes(d)},
		{"Since", since(d, options)},
	}
	v.Deadline = deadline(d, options)
	if !d.Since.IsZero() && d.Deadline.After(d.Since) {
		v.Total = int64(d.Deadline.Sub(d.Since).Seconds())
		v.Elapsed = min(max(int64(options.Now.Sub(d.Since).Seconds()), 0), v.Total)
	}
	for j := range d.Pods {
		pod := &d.Pods[j]
		shown := podView{pod.Namespace + "/" + pod.Name, pod.Text(options)}
		if len(pod.Blockers) > 0 || pod.Unknown != "" {
			v.Blocking = append(v.Blocking, shown)
		} else {
			v.Leaving = append(v.Leaving, shown)
		}
	}
	switch {
	case d.PodsUnknown != "":
		v.Rest = "Pods unknown: " + d.PodsUnknown
	case len(d.Pods) == 0:
		v.Rest = fmt.Sprintf("No Pods have to leave; %d stay.", d.Staying)
	}
	return v
}

func drainTone(state status.DrainState) tone {
	switch state {
	case status.DrainBlocked:
		return toneBad
	case status.DrainUnknown:
		return toneUnknown
	}
	return toneBusy
}

// known returns a value, the reason why it is not known, or "none".
func known(value, unknown string) string {
	if value == "" && unknown != "" {
		return "unknown: " + unknown
	}
	return cmp.Or(value, "none")
}

func since(d *status.Drain, options status.PrintOptions) string {
	if d.Since.IsZero() {
		return "unknown"
	}
	return options.Age(d.Since) + " ago"
}

func deadline(d *status.Drain, options status.PrintOptions) string {
	if !d.Deadline.IsZero() {
		return options.Until(d.Deadline)
	}
	return known("", d.DeadlineUnknown)
}

func volumes(d *status.Drain) string {
	if d.VolumesUnknown != "" {
		return "unknown: " + d.VolumesUnknown
	}
	return cmp.Or(strings.Join(d.Volumes, ", "), "none attached")
}
