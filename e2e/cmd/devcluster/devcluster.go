// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"nstance.dev/operator/e2e/controlplane"
)

// devcluster is one folder of state, with or without a cluster running on it.
type devcluster struct {
	root string // of the repository
	dir  string
	out  io.Writer
	// machines is set if the nodes of up are containers.
	machines bool
}

// locate finds the repository around the working directory, and the state
// folder in it unless dir names another.
func locate(dir string) (devcluster, error) {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return devcluster{}, err
	}
	if dir == "" {
		dir = filepath.Join(root, ".dev")
	}
	dir, err = filepath.Abs(dir)
	return devcluster{root: root, dir: dir}, err
}

// kill kills a component, like a crash.
func (d devcluster) kill(ctx context.Context, name string) error {
	component, err := d.component(name)
	if err != nil {
		return err
	}
	pid, running := component.PID()
	if !running {
		return fmt.Errorf("%s does not run", name)
	}
	if err := component.Kill(ctx); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "killed %s (process %d)\n", name, pid)
	return nil
}

// start runs a component again as it was run before. It is not a child of up then,
// which stops it nevertheless.
func (d devcluster) start(ctx context.Context, name string) error {
	component, err := d.component(name)
	if err != nil {
		return err
	}
	if err := component.StartDetached(ctx); err != nil {
		return err
	}
	pid, _ := component.PID()
	fmt.Fprintf(d.out, "started %s (process %d)\n", name, pid)
	return nil
}

// component finds a component of the cluster that runs in the folder.
func (d devcluster) component(name string) (*controlplane.Component, error) {
	if err := d.checkUp(); err != nil {
		return nil, err
	}
	components, err := controlplane.Components(d.dir)
	if err != nil {
		return nil, err
	}
	var known []string
	for _, c := range components {
		if c.Name == name {
			return c, nil
		}
		known = append(known, c.Name)
	}
	return nil, fmt.Errorf("unknown component %q; known: %s", name, strings.Join(known, ", "))
}

// checkUp returns an error unless an up runs in the folder.
func (d devcluster) checkUp() error {
	lock, err := acquire(d.dir)
	var locked lockedError
	if errors.As(err, &locked) {
		return nil
	}
	if err != nil {
		return err
	}
	lock.release()
	return fmt.Errorf("no dev cluster runs in %s", d.dir)
}

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
