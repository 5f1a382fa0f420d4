// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"strings"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/instance"
)

// Reasons of the lines of the audit trail.
const (
	reasonScaleDown    = "scale-down"
	reasonConfigChange = "config-change"
	reasonRequested    = "requested"
)

// logChange writes the audit line for a change of a group by one request, if it shrinks the
// group or replaces its instances. before and after are nil if the group does not exist.
func (s *Store) logChange(ctx context.Context, request audit.Request, before, after *Group) {
	if before == nil || after == nil {
		return
	}
	entry := audit.Entry{
		Shard: s.config.Shard.ID, Group: after.Key.Group, Writer: request.Writer, Generation: request.Generation, Result: audit.Accepted,
	}
	shrinks, replaces := after.Size < before.Size, before.Size > 0 && before.replacesInstances(after)
	switch {
	case shrinks:
		entry.Action, entry.Reason, entry.From, entry.To = audit.ShrinkGroup, reasonScaleDown, before.Size, after.Size
		if replaces {
			entry.Reason = reasonScaleDown + ", " + reasonConfigChange
		}
	case replaces:
		entry.Action, entry.Reason = audit.ReplaceInstances, reasonConfigChange
		entry.From, entry.To = differences(before, after)
	default:
		return
	}
	entry.Log(ctx)
}

// logDeletion writes the audit line for the deletion of the operators' settings of a group.
// after is nil for a dynamic group, and before is nil for a group that the storage has lost.
func (s *Store) logDeletion(r *request, after *Group) {
	entry := audit.Entry{
		Action: audit.DeleteGroup, Shard: s.config.Shard.ID, Group: r.key.Group,
		Writer: r.request.Writer, Generation: r.request.Generation, Reason: reasonRequested, To: int32(0), Result: audit.Accepted,
	}
	if r.before != nil {
		entry.From = r.before.Size
	}
	if after != nil {
		entry.To = after.Size
	}
	entry.Log(r.ctx)
}

// differences returns the settings in which two groups differ and which replace their
// instances. Arguments and userdata may be secret: if only they differ, it returns the
// hashes.
func differences(before, after *Group) (from, to string) {
	var was, is []string
	add := func(name, a, b string) {
		if a != b {
			was, is = append(was, name+"="+a), append(is, name+"="+b)
		}
	}
	add("template", before.Template, after.Template)
	add("instanceType", before.InstanceType, after.InstanceType)
	add("candidates", describeCandidates(before.Variants), describeCandidates(after.Variants))
	add("subnets", strings.Join(before.SubnetPools, "+"), strings.Join(after.SubnetPools, "+"))
	if len(was) == 0 {
		return before.InfraConfigHash, after.InfraConfigHash
	}
	return strings.Join(was, ","), strings.Join(is, ",")
}

// describeCandidates returns the types and markets of candidates.
func describeCandidates(variants []Variant) string {
	var described []string
	for _, v := range variants {
		described = append(described, strings.TrimSuffix(v.InstanceType+"/"+v.Market, "/"))
	}
	return strings.Join(described, "+")
}

// configurationWriter is the writer of changes that come from the server's configuration.
const configurationWriter = "configuration"

// Causes are the requests that led to the present state of a group, as far as this server has
// seen them. They are not stored: a server of an earlier version rejects an object with
// fields that it does not know. After a restart only the generation of Revision is known.
type Causes struct {
	// Size is the request that has set the size.
	Size audit.Request
	// Config is the request that has changed what the instances are compared with, so that some of
	// them are replaced.
	Config audit.Request
}

// after returns the causes of next, the group after a request to a group with the causes c.
// before is nil if the request creates the group.
func (c Causes) after(request audit.Request, before, next *Group) Causes {
	if before == nil || before.Size != next.Size {
		c.Size = request
	}
	if before != nil && before.replacesInstances(next) {
		c.Config = request
	}
	return c
}

func (g *Group) causes() Causes {
	if g == nil {
		return Causes{}
	}
	return g.Causes
}

// requestOf returns the request of ctx for an object with a revision, which may be nil. It is
// the zero value if ctx belongs to no call.
func requestOf(ctx context.Context, revision *Revision) audit.Request {
	request := audit.RequestFrom(ctx)
	if revision != nil && request.ID != "" {
		request.Generation = revision.Generation
	}
	return request
}

// DeletedBy returns the request that deleted a group. It is the zero value if the group was
// not deleted, or if another server deleted it.
func (s *Store) DeletedBy(key instance.GroupKey) audit.Request {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.deletedBy[key]
}
