// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package statemetrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/cache"
)

var (
	informerSynced  = newDesc("informer_synced", "1 if the cache of a resource is complete, otherwise 0.", "resource")
	informerVersion = newDesc("informer_resource_version",
		"Resource version that the cache of a resource has reached. It grows while the watch delivers events or bookmarks; missing before the first list.", "resource")
)

// Informers collects the state of informers, by resource. They are watched on every
// replica.
type Informers map[string]cache.SharedIndexInformer

// Describe implements prometheus.Collector.
func (Informers) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- informerSynced
	descriptions <- informerVersion
}

// Collect implements prometheus.Collector.
func (i Informers) Collect(metrics chan<- prometheus.Metric) {
	for resource, informer := range i {
		metrics <- gauge(informerSynced, number(informer.HasSynced()), resource)
		if version, ok := parseVersion(informer.LastSyncResourceVersion()); ok {
			metrics <- gauge(informerVersion, version, resource)
		}
	}
}

// parseVersion returns a resource version as a number, and whether it is one.
func parseVersion(version string) (float64, bool) {
	parsed, err := strconv.ParseUint(version, 10, 64)
	return float64(parsed), err == nil
}
