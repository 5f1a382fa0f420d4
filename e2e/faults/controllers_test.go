// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// controllerFaults are those of the other controllers. The operator and the shards
// continue without them.
func (o *faultyOperator) controllerFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "Cluster API is killed", Happen: continuesWhile(killed(controlplane.CAPI))},
		{Name: "the controller manager hangs", Happen: continuesWhile(frozen(controlplane.ControllerManager))},
		{Name: "all kubelets hang", Happen: func(t *testing.T, scaleUp testcluster.ScaleUp) {
			thaw := testcluster.Freeze(t, env.Component(controlplane.KWOK))
			defer thaw()
			if !tier.Full() {
				markUnknown(t, faultyPool)
			}
			testcluster.Eventually(t, 3*time.Minute, "no Node of the pool is ready", func(ctx context.Context) error {
				ready, err := env.ReadyNodeIDs(ctx, faultyPool)
				if err == nil && len(ready) > 0 {
					err = fmt.Errorf("%d are ready", len(ready))
				}
				return err
			})
			scaleUp.Begin(t)
			scaleUp.UntilShardsRun(t)
		}},
	}, testcluster.InFull(
		testcluster.Fault{Name: "Cluster API hangs", Happen: continuesWhile(frozen(controlplane.CAPI))},
		testcluster.Fault{Name: "the controller manager is killed", Happen: continuesWhile(killed(controlplane.ControllerManager))},
	)...)
}

// markUnknown does to the Nodes of a group what the controller manager does after it has
// heard nothing from their kubelets for 40 seconds.
func markUnknown(t *testing.T, group string) {
	t.Helper()
	nodes, err := env.Nodes(t.Context(), group)
	require.NoError(t, err)
	for _, node := range nodes {
		_, err := env.Kube.CoreV1().Nodes().Patch(t.Context(), node.Name, types.StrategicMergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
}

func continuesWhile(begin func(*testing.T) (end func())) func(*testing.T, testcluster.ScaleUp) {
	return func(t *testing.T, scaleUp testcluster.ScaleUp) {
		defer begin(t)()
		scaleUp.Begin(t)
		scaleUp.UntilShardsRun(t)
	}
}
