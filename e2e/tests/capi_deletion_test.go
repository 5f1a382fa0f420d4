// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/nstance"
)

// Cluster API deletes a Cluster with all that belongs to it. Then the operator
// makes it anew: there is a cluster as long as there is an operator.
func TestClusterIsMadeAnewAfterItsDeletion(t *testing.T) {
	const name = "deleted"
	eventuallyConnected(t)
	if err := tryCreatePool(t.Context(), name, 3); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 3) })
	clusters, nstanceClusters := env.capi.Clusters(nstance.Namespace), env.nstance.InfrastructureV1beta1().NstanceClusters(nstance.Namespace)
	before, err := clusters.Get(t.Context(), clusterName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ours, err := nstanceClusters.Get(t.Context(), clusterName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	if err := clusters.Delete(t.Context(), clusterName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*time.Minute, "there is another Cluster", func(ctx context.Context) error {
		now, err := clusters.Get(ctx, clusterName, metav1.GetOptions{})
		if err == nil && now.UID == before.UID {
			err = errors.New("it is the same")
		}
		return err
	})
	eventuallyConnected(t)
	if now, err := nstanceClusters.Get(t.Context(), clusterName, metav1.GetOptions{}); err != nil || now.UID == ours.UID {
		t.Errorf("the NstanceCluster is the same, error %v", err)
	}
	if err := gone(t.Context(), name); err != nil {
		t.Error(err)
	}
	eventually(t, time.Minute, "no Node is left", func(ctx context.Context) error {
		nodes, err := readyNodes(ctx, name)
		if err == nil && len(nodes) > 0 {
			err = fmt.Errorf("%d are left", len(nodes))
		}
		return err
	})
}
