// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package statemetrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

var (
	groupDesired = newDesc("group_desired_instances",
		"Managed instances that a shard is to have of a group: the size of its shard group.", "group", "shard")
	groupActual = newDesc("group_running_instances",
		"Running managed instances of a group, as its shard has reported last; missing before the first report.", "group", "shard")
	groupDraining = newDesc("group_draining_instances",
		"Instances of a group that wait for their drain.", "group", "shard")
	groupShortfall = newDesc("group_shortfall_instances",
		"Instances of a group that the provider of its shard does not create for lack of capacity or quota.", "group", "shard")
	groupNotReady = newDesc("group_not_ready",
		"1 while the condition Ready of a shard group is not True, by its reason; missing otherwise.", "group", "shard", "reason")
)

// groupOnShard is a group on one shard.
type groupOnShard struct{ group, shard string }

func (c *Collector) collectGroups(metrics chan<- prometheus.Metric) {
	// A lister of a cache returns no errors.
	objects, _ := c.sources.ShardGroups.List(labels.Everything())
	draining := c.draining()
	for _, object := range objects {
		of := groupOnShard{string(object.Spec.Group), string(object.Spec.Shard)}
		metrics <- gauge(groupDesired, float64(object.Spec.Size), of.group, of.shard)
		metrics <- gauge(groupDraining, float64(draining[of]), of.group, of.shard)
		reported, found := c.sources.Groups.Get(of.shard, of.group)
		switch {
		case found:
			metrics <- gauge(groupActual, float64(reported.ActualSize), of.group, of.shard)
		case c.sources.Groups.HasSynced(of.shard):
			// The shard does not have the group.
			metrics <- gauge(groupActual, 0, of.group, of.shard)
		}
		metrics <- gauge(groupShortfall, float64(reported.Shortfall.Missing), of.group, of.shard)
		if reason := notReady(object); reason != "" {
			metrics <- gauge(groupNotReady, 1, of.group, of.shard, reason)
		}
	}
}

// draining returns the number of drains of each group.
func (c *Collector) draining() map[groupOnShard]int {
	counts := map[groupOnShard]int{}
	for _, id := range c.sources.Shards() {
		for _, notice := range c.sources.Notices.List(id) {
			if notice.State == shard.Draining {
				counts[groupOnShard{notice.Group, id}]++
			}
		}
	}
	return counts
}

// notReady returns the reason of the condition Ready, "" if it is True or not known yet.
func notReady(object *v1beta1.NstanceShardGroup) string {
	ready := meta.FindStatusCondition(object.Status.Conditions, v1beta1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return ""
	}
	return ready.Reason
}
