// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package statemetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"nstance.dev/operator/pkg/operator/shard"
)

var (
	shardConnected = newDesc("shard_connected",
		"1 while the watch of a shard's groups is open and the last list since then succeeded, otherwise 0.", "shard")
	shardSynced = newDesc("shard_synced",
		"1 once all groups of a shard were read since this leader connected to it, otherwise 0.", "shard")
	shardVerified = newDesc("shard_identity_verified",
		"1 while the server at the address of a shard is known to be that of the shard, 0 if it is another one; missing while no server responds.", "shard")
	shardLastList = newDesc("shard_last_list_timestamp_seconds",
		"Time of the last list of a shard's groups, in seconds since 1970; 0 before the first.", "shard")
	shardLastMessage = newDesc("shard_last_stream_message_timestamp_seconds",
		"Time at which a watch of a shard was opened or has delivered its last event, in seconds since 1970, by stream: groups or instances; 0 before the first.", "shard", "stream")
	shardReconnects = newDesc("shard_reconnects_total",
		"How often the watch of a shard's groups was opened again.", "shard")
)

func (c *Collector) collectShards(metrics chan<- prometheus.Metric) {
	for _, id := range c.sources.Shards() {
		connected, reason := c.sources.Groups.Reachable(id)
		metrics <- gauge(shardConnected, number(connected), id)
		metrics <- gauge(shardSynced, number(c.sources.Groups.HasSynced(id)), id)
		switch {
		case connected:
			metrics <- gauge(shardVerified, 1, id)
		case shard.IsWrongServer(reason):
			metrics <- gauge(shardVerified, 0, id)
		}
		link := c.sources.Groups.Link(id)
		metrics <- gauge(shardLastList, seconds(link.LastList), id)
		metrics <- gauge(shardLastMessage, seconds(link.LastMessage), id, "groups")
		metrics <- gauge(shardLastMessage, seconds(c.sources.Notices.LastMessage(id)), id, "instances")
		metrics <- prometheus.MustNewConstMetric(shardReconnects, prometheus.CounterValue, float64(link.Reconnects), id)
	}
}
