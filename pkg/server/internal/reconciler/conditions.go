// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"cmp"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// isUncreated reports whether the provider has never listed an instance.
func isUncreated(i *instance.Instance) bool {
	return i.State == instance.Pending && !i.Known
}

// registrationTimedOut reports whether to give up an instance: the provider
// does not list it, and the last attempt to create it came after the timeout.
// Age alone is not enough, because the creation may have waited for its turn or
// for a leader, and an instance that was promised to an operator must be tried.
// A zero timeout never passes.
func registrationTimedOut(i *instance.Instance, timeout time.Duration, attempted time.Time) bool {
	return timeout > 0 && isUncreated(i) && !attempted.Before(i.CreatedAt.Add(timeout))
}

// neverRegistered reports whether to give up an instance that runs and whose agent has
// not registered in time.
func (p *planner) neverRegistered(i *instance.Instance) bool {
	return awaitsRegistration(i) && p.registrationTimeout > 0 && !p.now.Before(i.Agent.Since.Add(p.registrationTimeout))
}

// awaitsRegistration reports whether an instance runs and its agent has not registered.
func awaitsRegistration(i *instance.Instance) bool {
	return i.Agent.State == instance.AgentAwaited && i.Registration == nil && !i.Agent.Since.IsZero()
}

// isNoticed reports whether the provider has announced that it will terminate an
// instance. It does not count: nothing can keep it.
func isNoticed(i *instance.Instance) bool {
	return i.Agent.Notice != nil || i.Drain != nil && i.Drain.Reason == instance.ReasonSpot
}

// isDeletedAsUnhealthy reports whether an instance is being deleted for being
// unhealthy.
func isDeletedAsUnhealthy(i *instance.Instance) bool {
	return i.DeleteReason == instance.ReasonUnhealthy || i.Drain != nil && i.Drain.Reason == instance.ReasonUnhealthy
}

// isReplaced reports whether an instance that is being or was deleted has a
// replacement. Only surplus instances have none; a returned one is surplus too.
func isReplaced(i *instance.Instance) bool {
	reason := i.DeleteReason
	if i.Drain != nil {
		reason = i.Drain.Reason
	}
	return reason != instance.ReasonScaleDown && reason != instance.ReasonReturned
}

// oldestFirst orders instances by age, then by id.
func oldestFirst(a, b *instance.Instance) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
}
