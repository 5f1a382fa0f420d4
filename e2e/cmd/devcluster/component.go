// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"nstance.dev/operator/e2e/controlplane"
)

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
