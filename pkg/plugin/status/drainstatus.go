// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"nstance.dev/operator/pkg/plugin/objects"
)

// DrainStatus is the output of "kubectl nstance drain-status".
type DrainStatus struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Drains     []Drain `json:"drains"`
	// Unknown lists the objects that could not be read.
	Unknown []string `json:"unknown,omitempty"`
}

// DrainStatusKind is the kind of DrainStatus.
const DrainStatusKind = "DrainStatus"

// BuildDrains returns the drains of all Nodes in a snapshot.
func BuildDrains(s *objects.Snapshot) DrainStatus {
	status := DrainStatus{APIVersion: objects.APIVersion, Kind: DrainStatusKind, Drains: []Drain{}, Unknown: s.Unknown()}
	status.Drains = append(status.Drains, FindDrains(s)...)
	return status
}

// PrintDrains writes a table of drains, and below it the details of each drain.
func PrintDrains(w io.Writer, status DrainStatus, options PrintOptions) error {
	if len(status.Drains) == 0 {
		if len(status.Unknown) == 0 {
			fmt.Fprintln(w, "No drains in progress.")
		}
		PrintUnknown(w, status.Unknown)
		return nil
	}
	table := NewTable(options, Column{Name: "NODE"}, Column{Name: "POOL"}, Column{Name: "SHARD"},
		Column{Name: "BY"}, Column{Name: "REASON"}, Column{Name: "SINCE"}, Column{Name: "DEADLINE"},
		Column{Name: "PODS"}, Column{Name: "VOLUMES"}, Column{Name: "STATUS"},
		Column{Name: "INSTANCE", Wide: true}, Column{Name: "MACHINE", Wide: true})
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
	PrintDrainDetails(w, status.Drains, options)
	PrintUnknown(w, status.Unknown)
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

func (d *Drain) deadline(options PrintOptions) string {
	switch {
	case !d.Deadline.IsZero():
		return options.Until(d.Deadline)
	case d.DeadlineUnknown != "":
		return "<unknown>"
	}
	return "<none>"
}

// PrintDrainDetails writes the Pods and volumes that are left on the Node of each drain, and
// the reasons that block it.
func PrintDrainDetails(w io.Writer, list []Drain, options PrintOptions) {
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
		if d.State == DrainUnreported {
			fmt.Fprintln(w, "  no object that was read has its instance: the shard has deleted it, or it belongs to another namespace (-A)")
		}
		for _, message := range d.Messages {
			fmt.Fprintf(w, "  reported: %s\n", message)
		}
		if d.BlockageUnknown != "" {
			fmt.Fprintf(w, "  reported: unknown, %s\n", d.BlockageUnknown)
		}
		d.printPods(w, options)
		d.printVolumes(w)
	}
}

func (d *Drain) printPods(w io.Writer, options PrintOptions) {
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

// Text returns the state of a Pod for which the drain waits.
func (p *Pod) Text(options PrintOptions) string {
	var states []string
	if !p.TerminatesAt.IsZero() {
		text := "is being deleted, its grace period ends " + options.Until(p.TerminatesAt)
		if len(p.Finalizers) > 0 {
			text += ", finalizers: " + strings.Join(p.Finalizers, ", ")
		}
		states = append(states, text)
	}
	if p.Order != 0 {
		states = append(states, fmt.Sprintf("is evicted in order %d, %s", p.Order, p.Rule))
	}
	if p.MayComplete != "" {
		states = append(states, "may complete before it is evicted, "+p.MayComplete)
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
