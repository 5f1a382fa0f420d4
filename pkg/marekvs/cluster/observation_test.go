// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/observe"
)

// page is the metrics of a node, with the sizes of its volume.
const page = `# HELP marekvs_commands_total Commands
# TYPE marekvs_commands_total counter
marekvs_commands_total{cmd="get"} %d
# TYPE marekvs_cluster_underreplicated_partitions gauge
marekvs_cluster_underreplicated_partitions 0
# TYPE marekvs_cluster_members gauge
marekvs_cluster_members %d
# TYPE marekvs_ae_rounds_total counter
marekvs_ae_rounds_total %d
# TYPE marekvs_ae_repair_ops_total counter
marekvs_ae_repair_ops_total 0
# TYPE marekvs_disk_total_bytes gauge
marekvs_disk_total_bytes 1e+11
# TYPE marekvs_disk_avail_bytes gauge
marekvs_disk_avail_bytes %g
# TYPE marekvs_disk_write_stopped gauge
marekvs_disk_write_stopped %d
`

// disks scrapes nodes whose metrics are text. Their volumes have 1e11 bytes.
type disks struct {
	*nodes
	// used is the used share of each volume in percent. fullest overrides it by address.
	used    float64
	fullest map[string]float64
	// stopped is the address of a node that no longer writes.
	stopped string
}

func (d *disks) Scrape(_ context.Context, addresses []string) []observe.Scrape {
	results := make([]observe.Scrape, len(addresses))
	for i, address := range addresses {
		started := d.started[address]
		if started == nil {
			continue
		}
		used, stopped := d.used, 0
		if share, ok := d.fullest[address]; ok {
			used = share
		}
		if address == d.stopped {
			stopped = 1
		}
		text := fmt.Sprintf(page, int64(started.commands), len(d.started), int64(started.rounds), 1e9*(100-used), stopped)
		results[i].At = d.api.clock.Now()
		results[i].Metrics, results[i].Err = observe.Parse(strings.NewReader(text))
		require.NoError(d.api.t, results[i].Err)
	}
	return results
}

// newDisks returns a cluster with little load, whose volumes may be used to 70 %.
func newDisks(t *testing.T) (*harness, *disks) {
	t.Helper()
	h := newHarness(t, func(c *v1alpha1.MarekvsCluster) {
		autoscaled(c)
		c.Spec.Autoscale.TargetDiskPercent = 70
	})
	d := &disks{nodes: h.nodes, used: 20, fullest: map[string]float64{}}
	h.Scraper = d
	h.rate = 100
	return h, d
}

// The volume of one node that is used to the limit adds a node, and a removal that would exceed
// the limit does not happen, whatever the load.
func TestAFullVolumeAddsANode(t *testing.T) {
	h, d := newDisks(t)
	address := h.pods()[1].Status.PodIP
	d.fullest[address] = 69.9
	assert.Equal(t, []int32{3}, h.sizes(20))
	d.fullest[address] = 70
	h.pass()
	assert.Equal(t, int32(4), *h.set().Spec.Replicas)
	assert.Equal(t, []string{"Normal ScaledUp Scaled from 3 to 4 nodes"}, h.events())

	d.fullest[address] = 65 // 65 + 20/3 without the last node
	assert.Equal(t, []int32{4}, h.sizes(40))
	d.fullest[address] = 60
	assert.Equal(t, []int32{4, 3}, h.sizes(40))
}

// Nodes are not added for ever for volumes that stay full: the store keeps copies that a node no longer
// owns. The status says so.
func TestAVolumeThatStaysFullAddsOneNode(t *testing.T) {
	h, d := newDisks(t)
	assert.Equal(t, []int32{3}, h.sizes(10))
	assert.Equal(t, "False AsExpected", reason(h.cluster().Status, v1alpha1.ConditionDiskPressure))
	d.used = 90
	assert.Equal(t, []int32{3, 4}, h.sizes(100))
	assert.Equal(t, "True DiskFull", reason(h.cluster().Status, v1alpha1.ConditionDiskPressure))
	assert.Equal(t, []string{
		"Normal ScaledUp Scaled from 3 to 4 nodes",
		"Warning DiskFull a volume is used to 90 %, and no node is added for it until that helps: it was used to 90 % when a node was last added.",
	}, h.events())
	h.instance = h.newInstance(h.kube, d)
	assert.Equal(t, []int32{4}, h.sizes(30), "another operator knows it too")
	d.used = 85
	assert.Equal(t, []int32{4, 5}, h.sizes(30), "it has helped")
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Autoscale.TargetDiskPercent = 0 })
	h.pass()
	assert.Equal(t, "missing", reason(h.cluster().Status, v1alpha1.ConditionDiskPressure))
}

// A node that no longer writes blocks a removal, and the status says why.
func TestANodeThatStoppedToWriteBlocksARemoval(t *testing.T) {
	h, d := newDisks(t)
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Autoscale, c.Spec.Nodes = nil, 4 })
	h.settle()
	d.stopped = h.pods()[2].Status.PodIP
	h.change(sized(3))
	assert.Equal(t, []int32{4}, h.sizes(60))
	assert.Equal(t, v1alpha1.PhaseBlocked, h.cluster().Status.Phase)
	assert.Equal(t, "True DiskFull", reason(h.cluster().Status, v1alpha1.ConditionScaleDownBlocked))
	d.stopped = ""
	assert.Equal(t, []int32{4, 3}, h.sizes(10))
}

// A Pod is read at the port that it was created with until it is updated.
func TestAnotherPortOfTheMetrics(t *testing.T) {
	h := newHarness(t, nil)
	for _, pod := range h.pods() {
		port := int32(9121)
		if pod.Name == podName(1) {
			port = 9999
		}
		pod.Spec.Containers = []corev1.Container{{Name: "marekvs", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: port}}}}
		h.builtIn.Update(podResource, &pod)
	}
	h.pass()
	addresses := map[string]bool{}
	for _, address := range h.scraped {
		addresses[address] = true
	}
	assert.Equal(t, map[string]bool{
		h.pod(0).Status.PodIP: true, h.pod(1).Status.PodIP + ":9999": true, h.pod(2).Status.PodIP: true,
	}, addresses)
}

// A Pod that has lost the label by which the cache selects Pods is missing for the operator. The status says so: a sync
// that took the cache for old would be repeated for ever, without a status.
func TestAPodWithoutTheLabelOfTheOperatorIsMissing(t *testing.T) {
	h := newHarness(t, sized(4))
	pod := h.pod(1)
	delete(pod.Labels, v1alpha1.LabelManagedBy)
	h.builtIn.Update(podResource, pod)
	sync := func() {
		t.Helper()
		requeue, err := h.syncFresh()
		require.NoError(t, err)
		assert.Equal(t, period, requeue)
		h.advance(period)
	}
	h.change(sized(3))
	sync()
	assert.Equal(t, "scale-down to 3 deferred: metrics unreachable (3 of 4 pods scraped)", h.cluster().Status.Message)

	h.change(sized(4))
	h.changeClaim(1, requestReplacement)
	for range 10 {
		sync()
	}
	assert.Equal(t, "False NotObserved", reason(h.cluster().Status, v1alpha1.ConditionVolumesAvailable))
	assert.Contains(t, h.cluster().Status.Message, "the StatefulSet controller has created 4 of 3 pods")
	assert.Len(t, h.pods(), 4)
}
