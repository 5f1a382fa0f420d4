// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// action is the action of all events.
const action = "Drain"

// maxNote is the maximum length of a note in bytes. The API server allows 1024
// (https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/).
const maxNote = 1000

// Reasons of the events of Nodes that are drained.
const (
	reasonDrainStarted   = "DrainStarted"
	reasonDrainCompleted = "DrainCompleted"
	// reasonDrainTimedOut: the deadline was reached before all Pods had left.
	reasonDrainTimedOut = "DrainTimedOut"
)

// recordStart records that a Node was cordoned for a drain. The sync after the cordon does it: all
// Nodes of a burst are cordoned before, so that no cordon competes with an event for the API server. The
// next leader finds the Node cordoned, and does not record it again.
func (c *Controller) recordStart(key Key, node *corev1.Node, notice *shard.DeletionNotice) {
	note := fmt.Sprintf("draining for the deletion of instance %s on shard %s, reason %s", key.Instance, key.Shard, notice.Reason)
	if !notice.DeleteAt.IsZero() {
		note += ", at the latest at " + notice.DeleteAt.UTC().Format(time.RFC3339)
	}
	controller.Record(c.recorder, node, reasonDrainStarted, action, note)
}

// recordOutcome records the outcome of a drain about each Node of the instance.
func (c *Controller) recordOutcome(ctx context.Context, key Key, nodes []*corev1.Node, result outcome) {
	id := ""
	if request := audit.RequestFrom(ctx); request.ID != "" {
		id = fmt.Sprintf("; %s %s", audit.KeyRequestID, request.ID)
	}
	for _, node := range nodes {
		switch result {
		case drained:
			controller.Record(c.recorder, node, reasonDrainCompleted, action,
				fmt.Sprintf("the Pods have left, and shard %s may delete instance %s%s", key.Shard, key.Instance, id))
		case volumesAttached:
			controller.Record(c.recorder, node, reasonDrainCompleted, action,
				fmt.Sprintf("the Pods have left, some of their volumes are still attached, and shard %s may delete instance %s%s", key.Shard, key.Instance, id))
		case timedOut:
			controller.Warn(c.recorder, node, reasonDrainTimedOut, action,
				fmt.Sprintf("the drain was not finished in time, and shard %s deletes instance %s with the Pods that are left%s", key.Shard, key.Instance, id))
		}
	}
}

// recordBlockage records an event about a blockage on each Node, or on the shard group of an
// instance whose Node is not known.
func (c *Controller) recordBlockage(key Key, observed observation, b blockage) {
	if len(observed.nodes) == 0 {
		if object, err := c.shardGroups.Get(v1beta1.ShardGroupName(observed.notice.Group, key.Shard)); err == nil {
			controller.Warn(c.recorder, object, b.eventReason(), action, b.note)
		}
		return
	}
	for _, node := range observed.nodes {
		if b.pod == nil {
			controller.Warn(c.recorder, node, b.eventReason(), action, b.note)
			continue
		}
		c.recorder.Eventf(node, b.pod, corev1.EventTypeWarning, b.eventReason(), action, "%s", truncate(b.note, maxNote))
	}
}

// recordNoNode records an event about an instance whose deletion was acknowledged
// because it has no Node. If the group has no shard group, there is no object for the event.
func (c *Controller) recordNoNode(key Key, group string) {
	object, err := c.shardGroups.Get(v1beta1.ShardGroupName(group, key.Shard))
	if err != nil {
		return // the cache has no such object
	}
	controller.WarnAbout(c.recorder, object, key.Instance, v1beta1.ReasonNoNode, action,
		fmt.Sprintf("instance %s has no Node, so that it is deleted without a drain", key.Instance))
}

// truncate returns text in at most limit bytes of valid UTF-8.
func truncate(text string, limit int) string {
	return strings.ToValidUTF8(text[:min(len(text), limit)], "")
}

// outcome is the outcome of a drain.
type outcome string

const (
	// drained: all Pods that had to leave were evicted.
	drained outcome = "drained"
	// volumesAttached: all Pods were evicted, but some of their volumes are still
	// attached.
	volumesAttached outcome = "volumes_attached"
	// noNode: the instance had no Node.
	noNode outcome = "no_node"
	// timedOut: the shard's deadline was reached before the drain was complete.
	timedOut outcome = "timed_out"
	// deleted: the shard deleted the instance without an acknowledgement.
	deleted outcome = "deleted"
	// withdrawn: the shard no longer reports the notice.
	withdrawn outcome = "withdrawn"
)

// reasons are the reasons that are a label value (docs/protocol.md#drains). Other reasons are
// counted as "other", so that a server cannot create any number of series.
var reasons = []string{"unhealthy", "config-drift", "expired", "rotated", "replaced", "scale-down", "spot", "not-preferred"}

// metrics are the metrics of drains. They have no label with the name of an
// instance, so their number is bounded.
type metrics struct {
	duration         *prometheus.HistogramVec
	drains           *prometheus.GaugeVec
	evictionsRefused prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nstance_operator_drain_duration_seconds",
			Help:    "Time from the start of a drain to its acknowledgement or other outcome, by the shard's reason and by outcome.",
			Buckets: []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200},
		}, []string{"reason", "outcome"}),
		drains: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nstance_operator_drains",
			Help: "Drains that are not acknowledged, by state: running, waiting for a Pod that may complete or for a hook of the Machine, or blocked by a Pod that cannot be evicted or by more than one Node with the same provider id.",
		}, []string{"state"}),
		evictionsRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nstance_operator_evictions_refused_total",
			Help: "Evictions that the API server rejected; each attempt is counted.",
		}),
	}
	// A state without drains is 0, and not missing.
	m.setDrains(0, 0, 0)
	registry.MustRegister(m.duration, m.drains, m.evictionsRefused)
	return m
}

// drainFinished counts a drain.
func (m *metrics) drainFinished(reason string, took time.Duration, result outcome) {
	if !slices.Contains(reasons, reason) {
		reason = "other"
	}
	m.duration.WithLabelValues(reason, string(result)).Observe(max(took, 0).Seconds())
}

// setDrains sets the number of drains that are not acknowledged.
func (m *metrics) setDrains(running, waiting, blocked int) {
	m.drains.WithLabelValues("running").Set(float64(running))
	m.drains.WithLabelValues("waiting").Set(float64(waiting))
	m.drains.WithLabelValues("blocked").Set(float64(blocked))
}
