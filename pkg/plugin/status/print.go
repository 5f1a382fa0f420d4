// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"fmt"
	"io"
	"strconv"

	"nstance.dev/operator/pkg/plugin/drains"
	"nstance.dev/operator/pkg/plugin/printing"
)

// Prefixes of the rows of the tree.
const (
	branch, last         = "├─ ", "└─ "
	belowBranch, belowNo = "│  ", "   "
)

// Print writes the tree, and below it the conditions, drains and unknown information.
func Print(w io.Writer, status Status, options printing.Options) error {
	if len(status.Pools) > 0 {
		table := printing.NewTable(options, printing.Column{Name: "NAME"}, printing.Column{Name: "NODE"},
			printing.Column{Name: "REPLICAS", Wide: true}, printing.Column{Name: "SIZE"}, printing.Column{Name: "ACTUAL"},
			printing.Column{Name: "READY"}, printing.Column{Name: "DRAINING"}, printing.Column{Name: "AGE"},
			printing.Column{Name: "STATUS"}, printing.Column{Name: "PROVIDER-ID", Wide: true})
		for _, pool := range status.Pools {
			addPool(table, pool, options, severalNamespaces(status))
		}
		if err := table.Print(w); err != nil {
			return err
		}
	}
	if err := printOnDemand(w, status, options); err != nil {
		return err
	}
	printConditions(w, status, options)
	if len(status.Drains) > 0 || status.DrainsUnknown != "" {
		fmt.Fprintln(w, "\nDRAINS")
		drains.PrintDetails(w, status.Drains, options)
	}
	if status.DrainsUnknown != "" {
		fmt.Fprintln(w, "unknown: "+status.DrainsUnknown)
	}
	printing.PrintUnknown(w, status.Unknown)
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

func addPool(table *printing.Table, pool Pool, options printing.Options, namespaced bool) {
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

func addShard(table *printing.Table, shard Shard, options printing.Options, prefix, below string) {
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

func printOnDemand(w io.Writer, status Status, options printing.Options) error {
	switch {
	case status.OnDemandUnknown != "":
		fmt.Fprintf(w, "\nSINGLE INSTANCES\nunknown: %s\n", status.OnDemandUnknown)
		return nil
	case len(status.OnDemand) == 0:
		return nil
	}
	fmt.Fprintln(w, "\nSINGLE INSTANCES")
	table := printing.NewTable(options, printing.Column{Name: "NAME"}, printing.Column{Name: "GROUP"}, printing.Column{Name: "SHARD"},
		printing.Column{Name: "NODE"}, printing.Column{Name: "READY"}, printing.Column{Name: "POD"}, printing.Column{Name: "AGE"},
		printing.Column{Name: "STATUS"}, printing.Column{Name: "PROVIDER-ID", Wide: true})
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
