// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"fmt"
	"time"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// The delay between two corrections of a group doubles from firstCorrectionDelay to
// lastCorrectionDelay while another writer reverts them. It starts again after
// driftForgotten without a correction.
const (
	firstCorrectionDelay = time.Second
	lastCorrectionDelay  = time.Minute
	driftForgotten       = 10 * time.Minute
	// reportedCorrections is the number of corrections that are recorded as an event.
	reportedCorrections = 3
)

// sent is what a shard has accepted of a shard group. What is sent again without a change
// is a correction: another writer has changed the group, or the shard has lost it.
type sent struct {
	revision shard.Revision
	// replaces is the value of the annotation.
	replaces string
	// corrections is the number of corrections since first, the last of them at last.
	corrections int
	first, last time.Time
}

// delay returns the time from the last correction to the next one. The first is made at
// once.
func (s sent) delay() time.Duration {
	if s.corrections == 0 {
		return 0
	}
	// More shifts than that would overflow.
	return min(firstCorrectionDelay<<min(s.corrections-1, 10), lastCorrectionDelay)
}

// nextCorrection returns the time before which object is not sent again, zero for none.
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
	return s.revision == revisionOf(object) && s.replaces == object.Annotations[v1beta1.AnnotationReplaces]
}

// recordSent records that the shard has accepted object, and an event if that has
// corrected the group repeatedly.
func (c *Controller) recordSent(key cache.ObjectName, object *v1beta1.NstanceShardGroup) {
	now := c.clock.Now()
	c.mu.Lock()
	next := c.sent[key]
	switch {
	case !next.isOf(object):
		next = sent{revision: revisionOf(object), replaces: object.Annotations[v1beta1.AnnotationReplaces]}
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
