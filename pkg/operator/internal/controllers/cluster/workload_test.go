// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The condition exists while the Nodes are in another cluster, and follows its API server.
func TestWorkloadClusterReachable(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	reachable := func() *metav1.Condition {
		cluster, err := h.InfrastructureV1beta1().NstanceClusters(namespace).Get(h.Ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		return meta.FindStatusCondition(cluster.Status.Conditions, v1beta1.ConditionWorkloadClusterReachable)
	}
	assert.Nil(t, reachable(), "with one cluster")

	workload := &certificate{}
	h.controller.options.Workload = workload
	h.expect()
	assert.Nil(t, reachable(), "before the first request")
	workload.state = metav1.Condition{Status: metav1.ConditionFalse, Reason: "WorkloadClusterUnreachable", Message: "connection refused"}
	h.expect(writeStatus)
	require.NotNil(t, reachable())
	assert.Equal(t, "connection refused", reachable().Message)

	h.controller.options.Workload = nil
	h.expect(writeStatus)
	assert.Nil(t, reachable(), "with one cluster again")
}
