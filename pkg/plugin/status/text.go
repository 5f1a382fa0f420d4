// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"fmt"
	"strings"

	"nstance.dev/operator/pkg/plugin/printing"
)

// Text returns the reasons of the conditions that are not as they should be, or "Ready".
func (p *Pool) Text() string {
	text := cmp.Or(reasons(p.Problems), "Ready")
	if p.ShardsUnknown != "" {
		text += "; unknown: " + p.ShardsUnknown
	}
	return text
}

// Text returns the reasons of the conditions that are not as they should be, and for how
// long the shard is not connected, or "Ready".
func (s *Shard) Text(options printing.Options) string {
	text := reasons(s.Problems)
	if s.Reachable != "True" && !s.ReachableSince.IsZero() {
		text += " for " + options.Age(s.ReachableSince)
	}
	if s.UnidentifiedDrains > 0 {
		text += fmt.Sprintf("; drains of unidentified Nodes: %d", s.UnidentifiedDrains)
	}
	return cmp.Or(strings.TrimPrefix(text, "; "), "Ready")
}

// Text returns the state of an instance, and what is unknown about it.
func (i *Instance) Text(options printing.Options) string {
	switch {
	case i.NodeUnknown != "":
		return "unknown: " + i.NodeUnknown
	case i.DrainUnknown != "":
		return i.State + ", unknown: " + i.DrainUnknown
	case i.State == StateNotReady && i.Node != nil:
		return i.State + " for " + options.Age(i.Node.ReadySince)
	}
	return i.State
}

// Text returns the state of the instance, and the reasons of the conditions that are not as
// they should be.
func (m *Machine) Text(options printing.Options) string {
	text := m.Instance.Text(options)
	if found := reasons(m.Problems); found != "" && !strings.Contains(text, found) {
		text += ", " + found
	}
	return text
}

// Text returns the status of a condition, since when it has it, and why.
func (c *Condition) Text(options printing.Options) string {
	text := fmt.Sprintf("%s is %s for %s, %s", c.Type, c.Status, options.Age(c.Since), c.Reason)
	if c.Message != "" {
		text += ": " + c.Message
	}
	return text
}

// reasons joins the reasons of conditions, each once.
func reasons(conditions []Condition) string {
	var found []string
	seen := map[string]bool{}
	for _, condition := range conditions {
		if !seen[condition.Reason] {
			seen[condition.Reason] = true
			found = append(found, condition.Reason)
		}
	}
	return strings.Join(found, ", ")
}
