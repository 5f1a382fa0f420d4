// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// Cluster API deletes a Cluster with all its objects. Then the operator creates it
// again: a cluster exists as long as the operator runs.
func TestClusterIsRecreatedAfterDeletion(t *testing.T) {
	const name = "deleted"
	eventuallyConnected(t)
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), name, 3))
	env.UntilRunning(t, name, 3)
	clusters, nstanceClusters := env.Clusters(), env.NstanceClusters()
	before, err := clusters.Get(t.Context(), installation.ClusterName, metav1.GetOptions{})
	require.NoError(t, err)
	nstanceCluster, err := nstanceClusters.Get(t.Context(), installation.ClusterName, metav1.GetOptions{})
	require.NoError(t, err)

	require.NoError(t, clusters.Delete(t.Context(), installation.ClusterName, metav1.DeleteOptions{}))
	testcluster.Eventually(t, 3*time.Minute, "there is another Cluster", func(ctx context.Context) error {
		now, err := clusters.Get(ctx, installation.ClusterName, metav1.GetOptions{})
		if err == nil && now.UID == before.UID {
			err = errors.New("it is the same")
		}
		return err
	})
	eventuallyConnected(t)
	if now, err := nstanceClusters.Get(t.Context(), installation.ClusterName, metav1.GetOptions{}); err != nil || now.UID == nstanceCluster.UID {
		t.Errorf("the NstanceCluster is the same, error %v", err)
	}
	if err := env.PoolDeleted(t.Context(), name); err != nil {
		t.Error(err)
	}
	testcluster.Eventually(t, time.Minute, "no Node is left", func(ctx context.Context) error {
		nodes, err := env.ReadyNodeIDs(ctx, name)
		if err == nil && len(nodes) > 0 {
			err = fmt.Errorf("%d are left", len(nodes))
		}
		return err
	})
}
