// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// series returns the metrics of the cluster, without the conditions that have the status and the reason that
// they have at rest.
func (h *harness) series() []string {
	all := metricstest.SeriesOf(h.t, h.Controller)
	const labels = `cluster="demo",cluster_namespace="ns"`
	for i, line := range all {
		all[i] = strings.TrimPrefix(strings.ReplaceAll(line, labels, ""), "marekvs_operator_cluster_")
	}
	return slices.DeleteFunc(all, func(line string) bool { return strings.Contains(line, `reason="AsExpected"`) })
}

// The leader exports the status of each cluster and what syncs have seen of its volumes; a standby exports
// nothing, and a cluster that was deleted has no series.
func TestMetricsOfClusters(t *testing.T) {
	h := newHarness(t, nil)
	assert.Empty(t, h.series(), "a standby")
	h.leads.Store(true)
	h.disk = ptr.To(0.75)
	h.pass()
	at := h.clock.Now().Add(-period)
	h.show()
	assert.Equal(t, []string{
		"desired_nodes{} 3", fmt.Sprintf("last_sync_timestamp_seconds{} %g", float64(at.Unix())), "nodes{} 3", "operations_per_second{} 0",
		`phase{,phase="Healthy"} 1`, "ready_nodes{} 3", "underreplicated_partitions{} 0", "volume_used_ratio{} 0.75", "write_stopped_nodes{} 0",
	}, h.series())

	h.broken["i-2"] = true
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Image = "i-2" })
	h.stopped, h.under = 1, 7
	h.pass()
	h.pass()
	h.show()
	found := h.series()
	for _, want := range []string{"underreplicated_partitions{} 7", "write_stopped_nodes{} 3"} {
		assert.Contains(t, found, want)
	}
	h.under = 0
	h.settle()
	h.show()
	found = h.series()
	for _, want := range []string{
		"ready_nodes{} 2", `phase{,phase="Blocked"} 1`, `condition{,reason="RolloutHalted",status="False",type="RolledOut"} 1`,
		`condition{,reason="MetricsUnavailable",status="False",type="MetricsAvailable"} 1`,
	} {
		assert.Contains(t, found, want)
	}
	assert.NotContains(t, strings.Join(found, "\n"), "underreplicated_partitions", "not every node reports it")

	h.kinds.Remove(clusterResource, "ns", "demo")
	h.show()
	assert.Empty(t, h.series())
}
