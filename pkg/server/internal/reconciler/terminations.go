// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
)

const (
	// minStuckTimeout is the least time after which an instance that is still terminating
	// does not block the rotation and expiry of its group any more.
	minStuckTimeout = 10 * time.Minute
	// stuckReportInterval is how often such an instance is reported.
	stuckReportInterval = time.Hour
)

// terminations are the instances that are being terminated. A new leader counts anew.
type terminations struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]map[string]*termination
}

// termination is that of one instance.
type termination struct {
	since, reported time.Time
}

// update returns the instances of a group that have been terminating for longer than
// timeout, those of them to report now, and when the next one will have. A zero duration
// means never.
func (t *terminations) update(key instance.GroupKey, instances []instance.Instance, now time.Time, timeout time.Duration) (
	stuck map[string]bool, report []string, next time.Duration,
) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.byGroup[key]
	current := map[string]*termination{}
	stuck = map[string]bool{}
	for n := range instances {
		i := &instances[n]
		if i.DeleteReason == "" && i.State != instance.Terminating {
			continue
		}
		known := before[i.ID]
		if known == nil {
			known = &termination{since: now}
		}
		current[i.ID] = known
		if left := timeout - now.Sub(known.since); left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		stuck[i.ID] = true
		if known.reported.IsZero() || now.Sub(known.reported) >= stuckReportInterval {
			known.reported = now
			report = append(report, i.ID)
		}
		if next == 0 || stuckReportInterval < next {
			next = stuckReportInterval
		}
	}
	if t.byGroup == nil {
		t.byGroup = map[instance.GroupKey]map[string]*termination{}
	}
	t.byGroup[key] = current
	if len(current) == 0 {
		delete(t.byGroup, key)
	}
	return stuck, report, next
}

// findStuck returns the instances that do not terminate, and reports them.
func (r *reconciliation) findStuck(ctx context.Context, instances []instance.Instance, now time.Time) map[string]bool {
	timeout := max(minStuckTimeout, 2*r.config.Shard.RequestTimeout)
	stuck, report, next := r.terminations.update(r.key, instances, now, timeout)
	for _, id := range report {
		err := fmt.Errorf("instance %s has been terminating for longer than %s", id, timeout)
		klog.FromContext(ctx).Error(err, "An instance does not terminate", "instance", id)
		r.Failed(r.key, id, err)
	}
	if next > 0 {
		r.outcome.within(next)
	}
	return stuck
}
