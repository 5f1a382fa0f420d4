// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"nstance.dev/operator/pkg/server/instance"
)

var (
	groupSize = prometheus.NewDesc("nstance_server_group_size",
		"Desired number of managed instances of a group.", []string{"tenant", "group"}, nil)
	groupInstances = prometheus.NewDesc("nstance_server_group_instances",
		"Instances of a group that are not deleted, by state and whether they are on-demand. Draining instances have the state draining.",
		[]string{"tenant", "group", "state", "on_demand"}, nil)
)

// Collector exports the current sizes and instances of all groups. It belongs
// to one term and must be unregistered at the end of the term.
type Collector struct {
	Groups    Groups
	Instances Instances
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- groupSize
	descriptions <- groupInstances
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, key := range c.Groups.Keys() {
		if group, found := c.Groups.Get(key); found {
			metrics <- prometheus.MustNewConstMetric(groupSize, prometheus.GaugeValue, float64(group.Size), key.Tenant, key.Group)
		}
	}
	type kind struct {
		state    string
		onDemand bool
	}
	for _, key := range c.Instances.Keys() {
		counts := map[kind]int{}
		for _, i := range c.Instances.List(key) {
			counts[kind{stateOf(&i), i.OnDemand}]++
		}
		for kind, count := range counts {
			metrics <- prometheus.MustNewConstMetric(groupInstances, prometheus.GaugeValue, float64(count),
				key.Tenant, key.Group, kind.state, strconv.FormatBool(kind.onDemand))
		}
	}
}

// stateOf returns the state of an instance as a label.
func stateOf(i *instance.Instance) string {
	switch {
	case i.DeleteReason != "" || i.State == instance.Terminating:
		return "terminating"
	case i.Drain != nil:
		return "draining"
	}
	switch i.State {
	case instance.Pending:
		return "pending"
	case instance.Running:
		return "running"
	case instance.Impaired:
		return "impaired"
	case instance.Stopped:
		return "stopped"
	case instance.Failed:
		return "failed"
	default:
		return "missing"
	}
}
