// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"path/filepath"

	"nstance.dev/operator/e2e/controlplane"
)

// startWorkload starts the control plane of the Nodes and Pods, and leaves their parts out
// of options, which are those of the other control plane.
func startWorkload(ctx context.Context, options *controlplane.Options) (*controlplane.ControlPlane, error) {
	own := *options
	own.Dir = filepath.Join(options.Dir, "workload")
	own.Without = append([]string{controlplane.CAPI}, options.Without...)
	options.Without = append([]string{controlplane.Scheduler, controlplane.KWOK}, options.Without...)
	return controlplane.Start(ctx, own)
}

// stopWorkload stops the control plane of the Nodes and Pods if there is one.
func stopWorkload(ctx context.Context, workload *controlplane.ControlPlane) error {
	if workload == nil {
		return nil
	}
	return workload.Stop(context.WithoutCancel(ctx))
}
