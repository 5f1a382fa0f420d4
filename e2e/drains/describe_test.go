// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctl "sigs.k8s.io/cluster-api/cmd/clusterctl/client"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/tree"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// negative are the conditions that clusterctl shows in red if they are true
// (https://github.com/kubernetes-sigs/cluster-api/blob/v1.14.2/internal/util/tree/tree.go).
var negative = []string{
	clusterv1.PausedCondition, clusterv1.DeletingCondition, clusterv1.RollingOutCondition,
	clusterv1.ScalingUpCondition, clusterv1.ScalingDownCondition, clusterv1.MachineUpdatingCondition, clusterv1.RemediatingCondition,
}

// colorOf returns the color of a condition in the output of clusterctl.
func colorOf(c metav1.Condition) string {
	good := metav1.ConditionTrue
	if slices.Contains(negative, c.Type) {
		good = metav1.ConditionFalse
	}
	switch c.Status {
	case good:
		return "green"
	case metav1.ConditionUnknown:
		return "yellow"
	default:
		return "red"
	}
}

// clusterctl shows in green what is well, and in red what is wrong or going on.
func TestDescribe(t *testing.T) {
	t.Parallel()
	const scarce = "m7i.xlarge"
	log.SetLogger(klog.Background()) // of its clients
	config := filepath.Join(t.TempDir(), "clusterctl.yaml")
	require.NoError(t, os.WriteFile(config, []byte("{}"), 0o600))
	client, err := clusterctl.New(t.Context(), config)
	require.NoError(t, err)

	env.SetQuota(t, steadyShard, map[string]int{scarce: 0})
	t.Cleanup(func() { env.SetQuota(t, steadyShard, nil) })
	for _, name := range []string{"described-at-rest", "described-blocked", "described-short"} {
		pool := testcluster.NewNstanceMachinePool(name, steadyShard)
		if name == "described-short" {
			pool.Spec.InstanceType = scarce
		}
		require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, 2), pool))
		t.Cleanup(func() { env.DeletePools(t, name) })
	}
	env.UntilRunning(t, "described-at-rest", 2)
	env.UntilRunning(t, "described-blocked", 2)
	env.BlockDrains(t, "described-blocked")
	t.Cleanup(func() { env.UnblockDrains(t, "described-blocked") })
	env.Scale(t, "described-blocked", 1)

	atRest := map[string]string{
		"Ready": "True green", "ShardsReachable": "True green", "ScalingUp": "False green", "ScalingDown": "False green",
		"CapacityAvailable": "True green", "Paused": "False green",
	}
	with := func(changes map[string]string) map[string]string {
		changed := maps.Clone(atRest)
		maps.Copy(changed, changes)
		return changed
	}
	for name, want := range map[string]map[string]string{
		"described-at-rest": atRest,
		"described-blocked": with(map[string]string{"Ready": "False red", "ScalingDown": "True red"}),
		"described-short":   with(map[string]string{"Ready": "False red", "CapacityAvailable": "False red", "ScalingUp": "True red"}),
	} {
		testcluster.Eventually(t, 2*time.Minute, "clusterctl describes pool "+name, func(ctx context.Context) error {
			described, err := client.DescribeCluster(ctx, clusterctl.DescribeClusterOptions{
				Kubeconfig: clusterctl.Kubeconfig{Path: env.KubeconfigPath()}, Namespace: installation.Namespace, ClusterName: installation.ClusterName,
				Echo: true,
			})
			if err != nil {
				return err
			}
			got, err := colorsOf(described, name)
			if err == nil && !maps.Equal(got, want) {
				err = fmt.Errorf("conditions %v, want %v", got, want)
			}
			return err
		})
	}
}

// colorsOf returns status and color of the conditions of an NstanceMachinePool in the output of
// clusterctl.
func colorsOf(described *tree.ObjectTree, pool string) (map[string]string, error) {
	pending := described.GetObjectsByParent(described.GetRoot().GetUID())
	for len(pending) > 0 {
		object := pending[0]
		pending = append(pending[1:], described.GetObjectsByParent(object.GetUID())...)
		if object.GetObjectKind().GroupVersionKind().Kind != v1beta1.PoolKind || object.GetName() != pool {
			continue
		}
		colors := map[string]string{}
		for _, c := range tree.GetConditions(object) {
			colors[c.Type] = fmt.Sprintf("%s %s", c.Status, colorOf(c))
		}
		return colors, nil
	}
	return nil, fmt.Errorf("clusterctl does not show the NstanceMachinePool %s", pool)
}
