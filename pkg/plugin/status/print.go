// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Prefixes of the rows of the tree.
const (
	branch, last         = "├─ ", "└─ "
	belowBranch, belowNo = "│  ", "   "
)

// Print writes the tree, and below it the conditions, drains and unknown information.
func Print(w io.Writer, status Status, options PrintOptions) error {
	if len(status.Pools) > 0 {
		table := NewTable(options, Column{Name: "NAME"}, Column{Name: "NODE"},
			Column{Name: "REPLICAS", Wide: true}, Column{Name: "SIZE"}, Column{Name: "ACTUAL"},
			Column{Name: "READY"}, Column{Name: "DRAINING"}, Column{Name: "AGE"},
			Column{Name: "STATUS"}, Column{Name: "PROVIDER-ID", Wide: true})
		for _, pool := range status.Pools {
			addPool(table, pool, options, severalNamespaces(status))
		}
		if err := table.Print(w); err != nil {
			return err
		}
	}
	if err := printCandidates(w, status, options); err != nil {
		return err
	}
	if err := printOnDemand(w, status, options); err != nil {
		return err
	}
	printConditions(w, status, options)
	if len(status.Drains) > 0 || status.DrainsUnknown != "" {
		fmt.Fprintln(w, "\nDRAINS")
		PrintDrainDetails(w, status.Drains, options)
	}
	if status.DrainsUnknown != "" {
		fmt.Fprintln(w, "unknown: "+status.DrainsUnknown)
	}
	PrintUnknown(w, status.Unknown)
	return nil
}

func severalNamespaces(status Status) bool {
	for _, pool := range status.Pools {
		if pool.Namespace != status.Pools[0].Namespace {
			return true
		}
	}
	return false
}

func addPool(table *Table, pool Pool, options PrintOptions, namespaced bool) {
	name := pool.Name
	if namespaced {
		name = pool.Namespace + "/" + name
	}
	table.Add(name, "", replicas(pool), number(pool.Size), number(pool.Actual), number(pool.ReadyNodes), number(pool.Draining),
		options.Age(pool.Created), pool.Text(), "")
	for i, shard := range pool.Shards {
		prefix, below := branch, belowBranch
		if i == len(pool.Shards)-1 {
			prefix, below = last, belowNo
		}
		addShard(table, shard, options, prefix, below)
	}
}

func addShard(table *Table, shard Shard, options PrintOptions, prefix, below string) {
	table.Add(prefix+shard.Name, "", "", number(&shard.Size), number(shard.Actual), number(shard.ReadyNodes), number(shard.Draining),
		options.Age(shard.Created), shard.Text(options), "")
	for i, instance := range shard.Instances {
		prefix := below + branch
		if i == len(shard.Instances)-1 {
			prefix = below + last
		}
		table.Add(prefix+instance.Name, nodeCell(instance), "", "", "", readyCell(instance), "",
			options.Age(instance.Created), instance.Text(options), instance.ProviderID)
	}
}

func printOnDemand(w io.Writer, status Status, options PrintOptions) error {
	switch {
	case status.OnDemandUnknown != "":
		fmt.Fprintf(w, "\nSINGLE INSTANCES\nunknown: %s\n", status.OnDemandUnknown)
		return nil
	case len(status.OnDemand) == 0:
		return nil
	}
	fmt.Fprintln(w, "\nSINGLE INSTANCES")
	table := NewTable(options, Column{Name: "NAME"}, Column{Name: "GROUP"}, Column{Name: "SHARD"},
		Column{Name: "NODE"}, Column{Name: "READY"}, Column{Name: "POD"}, Column{Name: "AGE"},
		Column{Name: "STATUS"}, Column{Name: "PROVIDER-ID", Wide: true})
	for _, machine := range status.OnDemand {
		table.Add(machine.Machine, machine.Group, cmp.Or(machine.Shard, "<none>"), nodeCell(machine.Instance), readyCell(machine.Instance),
			cmp.Or(machine.Pod, "<none>"), options.Age(machine.Created), machine.Text(options), machine.ProviderID)
	}
	return table.Print(w)
}

func nodeCell(instance Instance) string {
	switch {
	case instance.Node != nil:
		return instance.Node.Name
	case instance.NodeUnknown != "":
		return "<unknown>"
	}
	return "<none>"
}

func readyCell(instance Instance) string {
	if instance.Node == nil {
		return nodeCell(instance)
	}
	return instance.Node.Ready
}

func replicas(pool Pool) string {
	if pool.ReplicasUnknown != "" {
		return "<unknown>"
	}
	if pool.Replicas == nil {
		return "<none>"
	}
	return number(pool.Replicas)
}

func number(n *int32) string {
	if n == nil {
		return "<unknown>"
	}
	return strconv.Itoa(int(*n))
}

// printConditions writes the conditions that report a problem, with their messages.
func printConditions(w io.Writer, status Status, options PrintOptions) {
	title := "\nCONDITIONS\n"
	list := func(object string, conditions []Condition) {
		for _, condition := range conditions {
			fmt.Fprintln(w, title+object+": "+condition.Text(options))
			title = ""
		}
	}
	for _, pool := range status.Pools {
		list("NstanceMachinePool "+pool.Namespace+"/"+pool.Name, pool.Problems)
		for _, shard := range pool.Shards {
			list("NstanceShardGroup "+pool.Namespace+"/"+shard.ShardGroup, shard.Problems)
			if shard.Lent != "" {
				fmt.Fprintf(w, "%sNstanceShardGroup %s/%s: instances lent, below 0 borrowed: %s\n", title, pool.Namespace, shard.ShardGroup, shard.Lent)
				title = ""
			}
		}
	}
	for _, machine := range status.OnDemand {
		list("NstanceMachine "+machine.Namespace+"/"+machine.Machine, machine.Problems)
	}
}

// Text returns the reasons of the problems, or "Ready".
func (p *Pool) Text() string {
	text := cmp.Or(reasons(p.Problems), "Ready")
	if p.ShardsUnknown != "" {
		text += "; unknown: " + p.ShardsUnknown
	}
	return text
}

// Text returns the reasons of the problems and for how long the shard is not connected, or
// "Ready".
func (s *Shard) Text(options PrintOptions) string {
	text := reasons(s.Problems)
	if s.Reachable != "True" && !s.ReachableSince.IsZero() {
		text += " for " + options.Age(s.ReachableSince)
	}
	if s.UnidentifiedDrains > 0 {
		text += fmt.Sprintf("; drains of unidentified Nodes: %d", s.UnidentifiedDrains)
	}
	return cmp.Or(strings.TrimPrefix(text, "; "), "Ready")
}

// Text returns the state of an instance, and why it is not known.
func (i *Instance) Text(options PrintOptions) string {
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
func (m *Machine) Text(options PrintOptions) string {
	text := m.Instance.Text(options)
	if found := reasons(m.Problems); found != "" && !strings.Contains(text, found) {
		text += ", " + found
	}
	return text
}

// Text returns the status of a condition, since when it has it, and why.
func (c *Condition) Text(options PrintOptions) string {
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
