// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
)

// controllerFaults are those of the other controllers. The operator and the shards
// continue without them.
func (o *faultyOperator) controllerFaults() []testcluster.Fault {
	var faults []testcluster.Fault
	for _, controller := range []struct{ name, component string }{
		{"Cluster API", controlplane.CAPI},
		{"the controller manager", controlplane.ControllerManager},
	} {
		faults = append(faults,
			testcluster.Fault{Name: controller.name + " is killed", Happen: continuesWhile(killed(controller.component))},
			testcluster.Fault{Name: controller.name + " hangs", Happen: continuesWhile(frozen(controller.component))})
	}
	return append(faults, testcluster.Fault{Name: "all kubelets hang", Happen: func(t *testing.T, scaleUp testcluster.ScaleUp) {
		thaw := testcluster.Freeze(t, env.Component(controlplane.KWOK))
		defer thaw()
		testcluster.Eventually(t, 3*time.Minute, "no Node of the pool is ready", func(ctx context.Context) error {
			ready, err := env.ReadyNodeIDs(ctx, faultyPool)
			if err == nil && len(ready) > 0 {
				err = fmt.Errorf("%d are ready", len(ready))
			}
			return err
		})
		scaleUp.Begin(t)
		scaleUp.UntilShardsRun(t)
	}})
}

func continuesWhile(begin func(*testing.T) (end func())) func(*testing.T, testcluster.ScaleUp) {
	return func(t *testing.T, scaleUp testcluster.ScaleUp) {
		defer begin(t)()
		scaleUp.Begin(t)
		scaleUp.UntilShardsRun(t)
	}
}
