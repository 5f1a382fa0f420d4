// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// seen is what a sync has seen of a cluster and does not publish in the status.
type seen struct {
	at time.Time
	// used is the used share of the fullest volume, nil if no node reports it.
	used *float64
	// stopped is how many nodes have stopped to write.
	stopped int
}

// see remembers what a sync has seen of a cluster that has a StatefulSet.
func (m *memory) see(o *scale.Observation, now time.Time) {
	found := &seen{at: now, stopped: o.WriteStopped()}
	if percent := o.DiskUsed(); percent != nil {
		share := *percent / 100
		found.used = &share
	}
	m.seen.Store(found)
}

// newDesc returns a metric of clusters. The label namespace is the namespace of the operator, as Prometheus
// sets it.
func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("marekvs_operator_"+name, help, append([]string{"cluster_namespace", "cluster"}, labels...), nil)
}

var (
	metricDesired         = newDesc("cluster_desired_nodes", "Nodes that a cluster is to have.")
	metricNodes           = newDesc("cluster_nodes", "Nodes that the StatefulSet of a cluster has, ready or not.")
	metricReady           = newDesc("cluster_ready_nodes", "Nodes of a cluster that are ready.")
	metricUnderreplicated = newDesc("cluster_underreplicated_partitions",
		"The largest number of partitions with too few owners that a node of a cluster reports; missing unless every node reports it.")
	metricRate = newDesc("cluster_operations_per_second",
		"Commands per second of all nodes of a cluster, as its status has them; missing unless every node reports them.")
	metricPhase      = newDesc("cluster_phase", "1 for the phase of a cluster.", "phase")
	metricCondition  = newDesc("cluster_condition", "1 for the status and the reason of each condition of a cluster.", "type", "status", "reason")
	metricVolumeUsed = newDesc("cluster_volume_used_ratio", "Used share of the fullest volume of a cluster, from 0 to 1; missing while no node reports it.")
	metricStopped    = newDesc("cluster_write_stopped_nodes", "Nodes of a cluster that have stopped to write, because their volumes are full.")
	metricLastSync   = newDesc("cluster_last_sync_timestamp_seconds", "Time at which the nodes of a cluster were last looked at, in seconds since 1970.")
)

// Describe implements prometheus.Collector.
func (c *Controller) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{
		metricDesired, metricNodes, metricReady, metricUnderreplicated, metricRate, metricPhase, metricCondition, metricVolumeUsed, metricStopped, metricLastSync,
	} {
		descriptions <- description
	}
}

// Collect implements prometheus.Collector. Only the leader has metrics of clusters, so that each has one
// series. They are the statuses of the cache, and what syncs have seen of the volumes. No label has the name
// of a node.
func (c *Controller) Collect(metrics chan<- prometheus.Metric) {
	if !c.leads.Load() {
		return
	}
	for _, obj := range c.Informers.Clusters.GetStore().List() {
		if cluster, ok := obj.(*v1alpha1.MarekvsCluster); ok {
			collectStatus(metrics, cluster)
			c.collectSeen(metrics, cluster)
		}
	}
}

func gauge(description *prometheus.Desc, cluster *v1alpha1.MarekvsCluster, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, append([]string{cluster.Namespace, cluster.Name}, labels...)...)
}

func collectStatus(metrics chan<- prometheus.Metric, cluster *v1alpha1.MarekvsCluster) {
	status := &cluster.Status
	metrics <- gauge(metricNodes, cluster, float64(status.Replicas))
	if status.DesiredNodes != nil {
		metrics <- gauge(metricDesired, cluster, float64(*status.DesiredNodes))
	}
	if status.ReadyNodes != nil {
		metrics <- gauge(metricReady, cluster, float64(*status.ReadyNodes))
	}
	if status.UnderreplicatedPartitions != nil {
		metrics <- gauge(metricUnderreplicated, cluster, float64(*status.UnderreplicatedPartitions))
	}
	if value, err := strconv.ParseFloat(status.OpsPerSecond, 64); err == nil {
		metrics <- gauge(metricRate, cluster, value)
	}
	if status.Phase != "" {
		metrics <- gauge(metricPhase, cluster, 1, string(status.Phase))
	}
	for _, condition := range status.Conditions {
		metrics <- gauge(metricCondition, cluster, 1, condition.Type, string(condition.Status), condition.Reason)
	}
}

func (c *Controller) collectSeen(metrics chan<- prometheus.Metric, cluster *v1alpha1.MarekvsCluster) {
	found := c.seenOf(cluster.UID)
	if found == nil {
		return
	}
	metrics <- gauge(metricLastSync, cluster, float64(found.at.UnixMilli())/1000)
	metrics <- gauge(metricStopped, cluster, float64(found.stopped))
	if found.used != nil {
		metrics <- gauge(metricVolumeUsed, cluster, *found.used)
	}
}

// seenOf returns what the last sync of a cluster has seen, nil before the first.
func (c *Controller) seenOf(cluster types.UID) *seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.memories[cluster]; m != nil {
		return m.seen.Load()
	}
	return nil
}
