// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// sameSpec succeeds when the spec was reverted.
var sameSpec = metadata("specs", func(o *unstructured.Unstructured) any { return o.Object["spec"] })

// clusterSlips returns the rows of the Cluster and of the NstanceCluster of
// docs/capi.md#slips-of-a-hand. TestDeleteCluster deletes the Cluster, and TestPause pauses it.
func clusterSlips() []slip {
	table := []slip{
		{resource: nstanceClusters, name: "spec edited", do: patched(`{"spec":{"controlPlaneEndpoint":{"host":"other","port":1}}}`), after: sameSpec},
		{resource: nstanceClusters, name: "deleted", do: slipped.deleted, after: slipped.another},
		{resource: nstanceClusters, name: "vanished", do: slipped.vanish, after: slipped.another},
		{resource: clusters, name: "created twice", do: slipped.copied, rejection: "spec.infrastructureRef.name of Cluster"},
		{resource: nstanceClusters, name: "created twice", do: slipped.copied, after: slipped.withoutTwin},
	}
	for _, resource := range []string{clusters, nstanceClusters} {
		table = append(table,
			slip{resource: resource, name: "labels stripped", do: patched(withoutLabels), after: sameLabels},
			slip{resource: resource, name: "owner removed", do: patched(withoutOwners), after: sameOwners},
			slip{resource: resource, name: "finalizer removed", do: patched(withoutFinalizers), after: sameFinalizers},
			slip{resource: resource, name: "metadata edited", do: patched(edited)},
			slip{resource: resource, name: "labels of a user stripped", do: patched(withoutLabels)},
		)
	}
	return table
}

// All pools share the Cluster, so its cells follow each other, and nothing else runs meanwhile.
func TestSlipsOfTheCluster(t *testing.T) {
	const pool = "slips-of-cluster"
	t.Cleanup(func() { deletePools(t, pool) })
	runPool(t, pool, 2, shardIDs...)
	instances := instancesOf(t, pool)
	losses := env.NewLossChecker(t, pool)
	for _, running := range tier.Pick([]bool{false}, []bool{true, false}) {
		for _, s := range clusterSlips() {
			t.Run(fmt.Sprintf("%s, %s, operator running %t", s.resource, s.name, running), func(t *testing.T) {
				object := clusterObject(t, s.resource)
				if !running {
					testcluster.Stop(t, env.OperatorProcess())
				}
				s.try(t, object)
				if !running {
					testcluster.Start(t, env.OperatorProcess())
				}
				testcluster.Eventually(t, 2*time.Minute, "repaired", func(ctx context.Context) error {
					if s.after != nil {
						if err := s.after(object, ctx); err != nil {
							return err
						}
					}
					return env.Running(ctx, pool, 2)
				})
				assert.Equal(t, instances, instancesOf(t, pool))
				losses.ExpectNone(t)
			})
		}
	}
	env.Scale(t, pool, 3)
	env.UntilRunning(t, pool, 3)
	now := instancesOf(t, pool)
	for id, node := range instances {
		assert.Equal(t, node, now[id], "the Node of %s", id)
	}
	losses.ExpectNone(t)
}

// clusterObject returns the Cluster or the NstanceCluster once Cluster API has completed its
// metadata.
func clusterObject(t *testing.T, resource string) (object slipped) {
	t.Helper()
	object.client = env.Dynamic.Resource(resourceVersion(resource).WithResource(resource)).Namespace(installation.Namespace)
	testcluster.Eventually(t, time.Minute, resource+" has its metadata", func(ctx context.Context) (err error) {
		if object.before, err = object.client.Get(ctx, installation.ClusterName, metav1.GetOptions{}); err != nil {
			return err
		}
		if resource == clusters && !slices.Contains(object.before.GetFinalizers(), "cluster.cluster.x-k8s.io") {
			return fmt.Errorf("finalizers are %v", object.before.GetFinalizers())
		}
		if resource == nstanceClusters && (len(object.before.GetLabels()) == 0 || len(object.before.GetOwnerReferences()) == 0) {
			return fmt.Errorf("labels are %v, owners %v", object.before.GetLabels(), object.before.GetOwnerReferences())
		}
		return nil
	})
	return object
}
