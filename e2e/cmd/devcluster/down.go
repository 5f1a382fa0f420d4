// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"nstance.dev/operator/e2e/controlplane"
)

// downTimeout is how long down waits until an up has exited.
const downTimeout = 2 * time.Minute

// down stops the up that runs in the folder, and the components that an earlier one
// left running.
func (d devcluster) down(ctx context.Context) error {
	lock, err := acquire(d.dir)
	var locked lockedError
	if errors.As(err, &locked) {
		fmt.Fprintf(d.out, "stopping the dev cluster of process %d\n", locked.pid)
		lock, err = d.stopUp(ctx, locked.pid)
	}
	if err != nil {
		return err
	}
	defer lock.release()
	if err := d.stopComponents(ctx); err != nil {
		return err
	}
	return d.removeLeftNodes(ctx)
}

func (d devcluster) stopUp(ctx context.Context, pid int) (*lock, error) {
	up, err := os.FindProcess(pid)
	if err != nil {
		return nil, err
	}
	if err := up.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return nil, fmt.Errorf("stop process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	lock, err := acquireWhenFree(ctx, d.dir)
	if err != nil {
		return nil, fmt.Errorf("wait for process %d to exit: %w", pid, err)
	}
	return lock, nil
}

// stopComponents stops the recorded components that still run. The folder must be
// locked.
func (d devcluster) stopComponents(ctx context.Context) error {
	components, err := controlplane.Components(d.dir)
	if err != nil {
		return err
	}
	for _, c := range slices.Backward(components) {
		pid, running := c.PID()
		if !running {
			continue
		}
		fmt.Fprintf(d.out, "stopping %s, left behind as process %d\n", c.Name, pid)
		if err := c.Stop(ctx); err != nil {
			return err
		}
	}
	return nil
}
