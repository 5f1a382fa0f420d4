// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"nstance.dev/operator/e2e/controlplane"
)

// status prints a table of the components on record, also of a cluster that
// has been stopped, and of the nodes that are containers.
func (d devcluster) status(ctx context.Context) error {
	components, err := controlplane.Components(d.dir)
	if err != nil {
		return err
	}
	if len(components) == 0 {
		return fmt.Errorf("no dev cluster was started in %s", d.dir)
	}
	table := tabwriter.NewWriter(d.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tPID\tSTATE\tPORT\tLOG")
	for _, c := range components {
		pid, state := "-", "dead"
		if id, running := c.PID(); running {
			pid, state = strconv.Itoa(id), "running"
		}
		var ports []string
		for _, port := range c.Ports {
			ports = append(ports, strconv.Itoa(port))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", c.Name, pid, state, strings.Join(ports, ","), c.LogPath())
	}
	nodes, address, err := d.nodes(ctx)
	for _, node := range nodes {
		name := strings.TrimPrefix(node.Names[0], "/")
		fmt.Fprintf(table, "%s\t-\t%s\t\tdocker --host %s logs %s\n", name, node.State, address, name)
	}
	return errors.Join(err, table.Flush())
}
