// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package statemetrics exports what the caches of the operator contain: the shards, the
// groups on them, the machines, and the caches themselves (docs/operations.md#metrics).
// Everything is read when Prometheus reads it, so that no metric is older than the caches.
// No label has the name of a Node, of a Pod or of an instance: the number of series grows
// with groups × shards and with nothing else.
package statemetrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	listers "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// Links is the state of the watches of shards.
type Links interface {
	// Link returns the state of the watch of groups.
	Link(shard string) shard.Link
}

// Notices is the cache of deletion notices.
type Notices interface {
	// List returns the last notice of each instance of a shard.
	List(shard string) []shard.DeletionNotice
	// LastMessage returns when the watch of instances was opened or has delivered its last
	// event, the zero time before the first.
	LastMessage(shard string) time.Time
}

// Groups is the cache of groups.
type Groups interface {
	Links
	Get(shard, key string) (shard.Group, bool)
	HasSynced(shard string) bool
	Reachable(shard string) (bool, error)
}

// Sources are what a Collector reads.
type Sources struct {
	// Shards returns the ids of the configured shards.
	Shards      func() []string
	Groups      Groups
	Notices     Notices
	ShardGroups listers.NstanceShardGroupNamespaceLister
	Machines    listers.NstanceMachineNamespaceLister
}

// Collector collects the state of shards, groups and machines. It belongs to a leader:
// other replicas have no connections to shards, and would export each group once more.
type Collector struct {
	sources Sources
}

// New returns a Collector. It is registered by the caller.
func New(sources Sources) *Collector { return &Collector{sources: sources} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{
		shardConnected, shardSynced, shardVerified, shardLastList, shardLastMessage, shardReconnects,
		groupDesired, groupActual, groupDraining, groupShortfall, groupNotReady, machines,
	} {
		descriptions <- description
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	c.collectShards(metrics)
	c.collectGroups(metrics)
	c.collectMachines(metrics)
}

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("nstance_operator_"+name, help, labels, nil)
}

func gauge(description *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, labels...)
}

// seconds returns a time in seconds since 1970, 0 for the zero time.
func seconds(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return float64(at.UnixMilli()) / 1000
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
