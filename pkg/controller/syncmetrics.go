// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import "github.com/prometheus/client_golang/prometheus"

// Results of syncs, as labels.
const (
	syncSucceeded = "success"
	syncFailed    = "error"
	syncPanicked  = "panic"
)

var (
	// SyncPanics counts the syncs that panicked, by controller.
	SyncPanics = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "controller_sync_panics_total",
		Help: "Syncs that panicked, by controller; the object is synced again.",
	}, []string{"controller"})
	// SyncDuration are the durations of syncs, by controller and result.
	SyncDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "controller_sync_duration_seconds",
		Help:    "Duration of one sync of one key, by controller and result: success, error or panic.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
	}, []string{"controller", "result"})
)
