// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// upsert sends the whole configuration and puts the reply into the cache, so that neither this
// sync nor the next one reads the previous state of the group. A rejection is stored, because
// the same request would be rejected again. So is the reply that the object is stale, and for
// a short time a reply that may be a rejection.
func (c *Controller) upsert(ctx context.Context, key cache.ObjectName, object *v1beta1.NstanceShardGroup, observed *observation) error {
	id := string(object.Spec.Shard)
	before := observed.group
	config := wanted(object, before)
	ctx, _ = audit.WithNewRequest(ctx)
	group, err := c.calls.UpsertGroup(ctx, id, string(object.Spec.Group), config)
	after := group
	if err != nil {
		after = requested(before, config)
	}
	c.auditUpsert(ctx, object, before, after, c.isCorrection(key, object), err)
	switch {
	case err == nil:
		if config.Replaces != nil {
			klog.FromContext(ctx).Info("Replaced a newer revision of the group as the annotation says", "shard", id, "revision", config.Revision, "replaced", config.Replaces, "size", config.Size)
		}
		klog.FromContext(ctx).V(2).Info("Group updated on shard", "shard", id, "size", object.Spec.Size, "removeFirst", object.Spec.RemoveFirst)
		c.recordSent(key, object)
		c.groups.Observe(id, group)
		// The cached instances are newer than the instances in the reply.
		if cached, ok := c.groups.Get(id, string(object.Spec.Group)); ok {
			observed.group = &cached
		}
	case shard.IsUnclear(err):
		c.setRejection(key, c.newUnclear(key, object, before, err))
		return err
	case shard.IsRejected(err), shard.IsStale(err):
		c.setRejection(key, newRejection(object, before, err, c.clock.Now()))
	}
	c.clearUnclear(key)
	return err
}

// The delay between two corrections of a group doubles from firstCorrectionDelay to
// lastCorrectionDelay while another writer reverts them. It starts again after
// driftForgotten without a correction.
const (
	firstCorrectionDelay = time.Second
	lastCorrectionDelay  = time.Minute
	driftForgotten       = 10 * time.Minute
	// reportedCorrections is the number of corrections after which an event is recorded.
	reportedCorrections = 3
)

// sent is the last request that a shard has accepted for a shard group. If it is sent again
// unchanged, it is a correction: another writer has changed the group, or the shard has lost
// it.
type sent struct {
	revision shard.Revision
	// replaces is the value of the annotation AnnotationConfirmOverwrite.
	replaces string
	// accepted is when the shard accepted the request first.
	accepted time.Time
	// corrections counts the corrections from first to last.
	corrections int
	first, last time.Time
}

// delay returns the delay after the last correction. The first correction is made at once.
func (s sent) delay() time.Duration {
	if s.corrections == 0 {
		return 0
	}
	// The bound prevents an overflow of the shift.
	return min(firstCorrectionDelay<<min(s.corrections-1, 10), lastCorrectionDelay)
}

// nextCorrection returns when object may be sent again, zero for at once.
func (c *Controller) nextCorrection(key cache.ObjectName, object *v1beta1.NstanceShardGroup) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, found := c.sent[key]
	if !found || !before.isOf(object) {
		return time.Time{}
	}
	return before.last.Add(before.delay())
}

func (s sent) isOf(object *v1beta1.NstanceShardGroup) bool {
	return s.revision == revisionOf(object) && s.replaces == object.Annotations[v1beta1.AnnotationConfirmOverwrite]
}

// recordSent records that the shard has accepted object. It records an event if this was a
// repeated correction.
func (c *Controller) recordSent(key cache.ObjectName, object *v1beta1.NstanceShardGroup) {
	now := c.clock.Now()
	c.mu.Lock()
	next := c.sent[key]
	switch {
	case !next.isOf(object):
		next = sent{revision: revisionOf(object), replaces: object.Annotations[v1beta1.AnnotationConfirmOverwrite], accepted: now}
	case now.Sub(next.last) >= driftForgotten:
		next.corrections, next.first = 1, now
	default:
		if next.corrections == 0 {
			next.first = now
		}
		next.corrections++
	}
	next.last = now
	c.sent[key] = next
	c.mu.Unlock()
	if next.corrections > 0 {
		c.metrics.corrections.WithLabelValues(string(object.Spec.Shard)).Inc()
	}
	if next.corrections >= reportedCorrections {
		controller.Warn(c.recorder, object, "DriftRepeated", "UpsertGroup", fmt.Sprintf(
			"the group on shard %q was changed by another writer and corrected %d times since %s; the next correction is made after %s",
			object.Spec.Shard, next.corrections, next.first.UTC().Format(time.RFC3339), next.delay()))
	}
}

// wantedSettings returns the settings to send to the server of group, which is nil if the group does
// not exist. It omits template and subnets of a static group: the server's configuration sets them,
// and the server rejects other values. And it omits what the server does not know.
func wantedSettings(spec *v1beta1.NstanceShardGroupSpec, group *shard.Group) shard.GroupSettings {
	settings := controllers.ShardGroupSettings(spec)
	if group == nil {
		return settings
	}
	if group.Static {
		settings.Template, settings.Subnets = "", nil
	}
	settings, _ = group.Supported(settings)
	return settings
}

// unsupported returns which settings of spec the server does not know, "" if it knows all. Labels and
// taints are missing from no Node for that reason: the operator sets them when it has registered.
func unsupported(spec *v1beta1.NstanceShardGroupSpec, group *shard.Group) string {
	if group == nil {
		return ""
	}
	settings := controllers.ShardGroupSettings(spec)
	if settings.Node.MaxPods == 0 {
		settings.Node = shard.NodeSettings{}
	}
	_, names := group.Supported(settings)
	if len(names) == 0 {
		return ""
	}
	if n := slices.Index(names, "nodeSettings"); n >= 0 {
		names[n] = "node.maxPods"
	}
	return fmt.Sprintf("the server of shard %q does not know %s and keeps its own values: update it, or remove them from the pool's spec",
		spec.Shard, strings.Join(names, ", "))
}

// staticConflict returns which settings of spec a static group cannot have, because the
// server's configuration sets other values; they are not sent. It returns "" without a
// conflict.
func staticConflict(spec *v1beta1.NstanceShardGroupSpec, group *shard.Group) string {
	if group == nil || !group.Static {
		return ""
	}
	var conflicts []string
	if spec.Template != "" && spec.Template != group.Template {
		conflicts = append(conflicts, fmt.Sprintf("template %q, the server has %q", spec.Template, group.Template))
	}
	subnets := make([]string, len(spec.Subnets))
	for i, id := range spec.Subnets {
		subnets[i] = string(id)
	}
	if len(subnets) > 0 && !slices.Equal(subnets, group.Subnets) {
		conflicts = append(conflicts, fmt.Sprintf("subnets %q, the server has %q", subnets, group.Subnets))
	}
	if len(conflicts) == 0 {
		return ""
	}
	return fmt.Sprintf("the group is static, and its server's configuration sets template and subnets; remove from the pool's spec: %s",
		strings.Join(conflicts, "; "))
}
