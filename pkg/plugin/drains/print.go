// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"nstance.dev/operator/pkg/plugin/printing"
)

// Print writes a table of drains, and below it what is left on each Node.
func Print(w io.Writer, status Status, options printing.Options) error {
	if len(status.Drains) == 0 {
		if len(status.Unknown) == 0 {
			fmt.Fprintln(w, "No drains in progress.")
		}
		printing.PrintUnknown(w, status.Unknown)
		return nil
	}
	table := printing.NewTable(options, printing.Column{Name: "NODE"}, printing.Column{Name: "POOL"}, printing.Column{Name: "SHARD"},
		printing.Column{Name: "BY"}, printing.Column{Name: "REASON"}, printing.Column{Name: "SINCE"}, printing.Column{Name: "DEADLINE"},
		printing.Column{Name: "PODS"}, printing.Column{Name: "VOLUMES"}, printing.Column{Name: "STATUS"},
		printing.Column{Name: "INSTANCE", Wide: true}, printing.Column{Name: "MACHINE", Wide: true})
	for _, d := range status.Drains {
		table.Add(d.Node, d.pool(), cmp.Or(d.Shard, "<unknown>"), strings.Join(d.By, ","),
			cmp.Or(d.Reason, "<unknown>"), options.Age(d.Since), d.deadline(options),
			count(len(d.Pods), d.PodsUnknown), count(len(d.Volumes), d.VolumesUnknown), string(d.State),
			cmp.Or(d.Instance, "<unknown>"), cmp.Or(d.Machine, "<none>"))
	}
	if err := table.Print(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	PrintDetails(w, status.Drains, options)
	printing.PrintUnknown(w, status.Unknown)
	return nil
}

func (d *Drain) pool() string {
	if d.PoolUnknown != "" {
		return "<unknown>"
	}
	return cmp.Or(d.Pool, "<none>")
}

func count(n int, unknown string) string {
	if unknown != "" {
		return "<unknown>"
	}
	return strconv.Itoa(n)
}

func (d *Drain) deadline(options printing.Options) string {
	switch {
	case !d.Deadline.IsZero():
		return options.Until(d.Deadline)
	case d.DeadlineUnknown != "":
		return "<unknown>"
	}
	return "<none>"
}

// PrintDetails writes what is left on the Node of each drain, and what blocks it.
func PrintDetails(w io.Writer, list []Drain, options printing.Options) {
	for i := range list {
		d := &list[i]
		fmt.Fprintf(w, "Node %s: %s for %s", d.Node, d.State, options.Age(d.Since))
		if d.Reason != "" {
			fmt.Fprintf(w, ", reason %s", d.Reason)
		} else {
			fmt.Fprintf(w, ", reason unknown: %s", d.ReasonUnknown)
		}
		switch {
		case !d.Deadline.IsZero():
			fmt.Fprintf(w, ", deadline %s", options.Until(d.Deadline))
		case d.DeadlineUnknown == "":
			fmt.Fprint(w, ", no deadline")
		case d.DeadlineUnknown != d.ReasonUnknown:
			fmt.Fprintf(w, ", deadline unknown: %s", d.DeadlineUnknown)
		}
		fmt.Fprintln(w)
		if d.State == Unreported {
			fmt.Fprintln(w, "  no object that was read has its instance: the shard has deleted it, or it belongs to another namespace (-A)")
		}
		for _, message := range d.Messages {
			fmt.Fprintf(w, "  reported: %s\n", message)
		}
		d.printPods(w, options)
		d.printVolumes(w)
	}
}

func (d *Drain) printPods(w io.Writer, options printing.Options) {
	switch {
	case d.PodsUnknown != "":
		fmt.Fprintf(w, "  Pods unknown: %s\n", d.PodsUnknown)
	case len(d.Pods) == 0:
		fmt.Fprintf(w, "  no Pods have to leave; %d stay\n", d.Staying)
	}
	for _, pod := range d.Pods {
		fmt.Fprintf(w, "  Pod %s/%s: %s\n", pod.Namespace, pod.Name, pod.Text(options))
	}
}

// Text returns what the drain waits for.
func (p *Pod) Text(options printing.Options) string {
	var states []string
	if !p.TerminatesAt.IsZero() {
		text := "is being deleted, its grace period ends " + options.Until(p.TerminatesAt)
		if len(p.Finalizers) > 0 {
			text += ", finalizers: " + strings.Join(p.Finalizers, ", ")
		}
		states = append(states, text)
	}
	states = append(states, p.Blockers...)
	if p.Unknown != "" {
		states = append(states, "unknown: "+p.Unknown)
	}
	return cmp.Or(strings.Join(states, "; "), "is to be evicted")
}

func (d *Drain) printVolumes(w io.Writer) {
	switch {
	case d.VolumesUnknown != "":
		fmt.Fprintf(w, "  attached volumes unknown: %s\n", d.VolumesUnknown)
	case len(d.Volumes) > 0:
		fmt.Fprintf(w, "  attached volumes: %s\n", strings.Join(d.Volumes, ", "))
	}
}
