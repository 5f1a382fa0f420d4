// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package plan

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"nstance.dev/operator/pkg/base/terminal"
	"nstance.dev/operator/pkg/plugin/status"
)

// Print writes the sizes and the instances that leave as a table, and below it what changes, blocks
// and is not known.
func Print(w io.Writer, plan Plan, options status.PrintOptions) error {
	table := status.NewTable(options, status.Column{Name: "SHARD"}, status.Column{Name: "SIZE"}, status.Column{Name: "NEXT"},
		status.Column{Name: "LEAVES"}, status.Column{Name: "NODE"}, status.Column{Name: "WHY"}, status.Column{Name: "PROVIDER-ID", Wide: true})
	for i := range plan.Shards {
		plan.Shards[i].addTo(table)
	}
	if err := table.Print(w); err != nil {
		return err
	}
	section := func(name string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(w, "\n%s\n", name)
		for _, line := range lines {
			fmt.Fprintln(w, terminal.Line(line))
		}
	}
	if plan.Blocked != "" {
		section("BLOCKED", []string{"The sizes stay: " + strings.TrimSuffix(plan.Blocked, "; the sizes stay")})
	}
	section("CHANGES", plan.changeLines())
	section("REPLACED", plan.replacedLines())
	section("ROTATION", plan.Rotation)
	section("GUARDS", plan.Guards)
	section("BLOCKS", plan.nodeLines(options))
	section("NOTES", plan.Notes)
	status.PrintUnknown(w, plan.Unknown)
	_, err := fmt.Fprintln(w, "\nThis is what would be decided now. The shards decide when it happens.")
	return err
}

// addTo adds a row for each instance that leaves, and at least one row.
func (s *Shard) addTo(table *status.Table) {
	first := []string{s.Name, strconv.Itoa(int(s.Size)), strconv.Itoa(int(s.Next))}
	if s.Removed {
		first[0] += " (left out)"
	}
	add := func(cells ...string) {
		table.Add(append(first, cells...)...)
		first = []string{"", "", ""}
	}
	for _, instance := range s.Leaves {
		add(instance.Name, cmp.Or(instance.Node, "<none>"), instance.Reason, cmp.Or(instance.ProviderID, "<none>"))
	}
	if s.NotRunning > 0 {
		add(fmt.Sprintf("up to %d", s.NotRunning), "<none>", ReasonNotRunning, "<none>")
	}
	if s.Selected > 0 {
		add(fmt.Sprintf("%d", s.Selected), "<unknown>", "the shard selects", "<unknown>")
	}
	if first[0] != "" {
		add("<none>", "", "", "")
	}
}

func (p *Plan) changeLines() []string {
	var lines []string
	for _, change := range p.Changes {
		lines = append(lines, fmt.Sprintf("%s: %s → %s: %s", change.Setting,
			cmp.Or(change.Before, "<unset>"), cmp.Or(change.After, "<unset>"), change.Effect))
	}
	if p.Replicas != nil && *p.Replicas != p.NextReplicas {
		lines = append(lines, fmt.Sprintf("replicas: %d → %d", *p.Replicas, p.NextReplicas))
	}
	return lines
}

func (p *Plan) nodeLines(options status.PrintOptions) []string {
	var lines []string
	for _, node := range p.Nodes {
		if node.PodsUnknown != "" {
			lines = append(lines, fmt.Sprintf("Node %s: Pods unknown: %s", node.Name, node.PodsUnknown))
		}
		for _, pod := range node.Pods {
			lines = append(lines, fmt.Sprintf("Node %s: Pod %s/%s: %s", node.Name, pod.Namespace, pod.Name, pod.Text(options)))
		}
	}
	return lines
}

func (p *Plan) replacedLines() []string {
	var lines []string
	for _, shard := range p.Shards {
		var names []string
		for _, instance := range shard.Replaced {
			names = append(names, fmt.Sprintf("%s (%s)", cmp.Or(instance.Node, instance.Name), instance.Reason))
		}
		if len(names) > 0 {
			suffix := ", one at a time"
			if len(p.Rotation) > 0 {
				suffix = ""
			}
			lines = append(lines, fmt.Sprintf("%s: %d%s: %s", shard.Name, len(names), suffix, strings.Join(names, ", ")))
		}
	}
	return lines
}
