// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// Settings of a pool whose last writer the audit trail names.
const (
	replicasSetting = "replicas"
	shardsSetting   = "shards"
)

// Reasons in the audit trail.
const (
	auditScaleDown    = "scale-down"
	auditConfigChange = "config-change"
	auditDrift        = "drift"
	auditDeleted      = "shard-group-deleted"
)

// auditUpsert writes the audit entry of a call of UpsertGroup that shrinks the group or
// replaces its instances, and records an event if the shard has accepted it. before is the
// group that the shard reported before the call, and after is the group that the call
// requests; correction is true if the shard had accepted the same request before.
func (c *Controller) auditUpsert(ctx context.Context, object *v1beta1.NstanceShardGroup, before *shard.Group, after shard.Group, correction bool, err error) {
	if before == nil || before.Deleting {
		return
	}
	entry := newEntry(object, err)
	settings, from, to := differences(before.GroupSettings, after.GroupSettings)
	shrinks, replaces := after.Size < before.Size, len(settings) > 0 && before.Size > 0
	var reason, action, did string
	switch {
	case shrinks:
		entry.Action, entry.Reason, entry.From, entry.To = audit.ShrinkGroup, auditScaleDown, before.Size, after.Size
		if replaces {
			entry.Reason = auditScaleDown + ", " + auditConfigChange
		}
		entry.Writer = c.options.Pools.Writer(ctx, object, replicasSetting)
		reason, action, did = reasonGroupShrunk, "ShrinkGroup", fmt.Sprintf("from %d to %d instances", before.Size, after.Size)
	case replaces:
		entry.Action, entry.Reason, entry.From, entry.To = audit.ReplaceInstances, auditConfigChange, from, to
		entry.Writer = c.options.Pools.Writer(ctx, object, settings...)
		reason, action, did = reasonInstancesReplaced, "ReplaceInstances", fmt.Sprintf("the instances are replaced: from %s to %s", from, to)
	default:
		return
	}
	if correction {
		entry.Reason = auditDrift
	}
	entry.Log(ctx)
	if err == nil {
		c.recordAudited(ctx, object, reason, action, did, entry.Writer)
	}
}

// auditDelete writes the audit entry of a call of DeleteGroup. After the shard has accepted
// the deletion, further calls only query whether it is complete, unless the group exists
// again.
func (c *Controller) auditDelete(ctx context.Context, key cache.ObjectName, object *v1beta1.NstanceShardGroup, before *shard.Group, err error) {
	if c.deletionAccepted(key, object.UID, err) && (before == nil || before.Deleting) {
		return
	}
	entry := newEntry(object, err)
	entry.Action, entry.Reason, entry.To = audit.DeleteGroup, auditDeleted, int32(0)
	did := "the shard deletes the group"
	if before != nil {
		entry.From = before.Size
		did = fmt.Sprintf("from %d to 0 instances: the shard deletes the group", before.Size)
	}
	entry.Writer = c.options.Pools.Writer(ctx, object, shardsSetting)
	entry.Log(ctx)
	if err == nil {
		c.recordAudited(ctx, object, reasonDeletingGroup, "DeleteGroup", did, entry.Writer)
	}
}

// deletionAccepted reports whether the shard had accepted the deletion of an object's group
// before this call, which has returned err.
func (c *Controller) deletionAccepted(key cache.ObjectName, uid types.UID, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.accepted[key] == uid
	if err == nil {
		c.accepted[key] = uid
	}
	return before
}

func newEntry(object *v1beta1.NstanceShardGroup, err error) audit.Entry {
	return audit.Entry{
		Shard: string(object.Spec.Shard), Group: string(object.Spec.Group), Generation: object.Generation,
		Result: controllers.CallResult(err), Err: err,
	}
}

// recordAudited records the event about a call that the shard has accepted.
func (c *Controller) recordAudited(ctx context.Context, object *v1beta1.NstanceShardGroup, reason, action, did, writer string) {
	note := fmt.Sprintf("%s; %s %s", did, audit.KeyRequestID, audit.RequestFrom(ctx).ID)
	if writer != "" {
		note += "; " + writer
	}
	controller.Record(c.recorder, object, reason, action, note)
}

// isCorrection reports whether the shard has accepted this version of object before.
func (c *Controller) isCorrection(key cache.ObjectName, object *v1beta1.NstanceShardGroup) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, found := c.sent[key]
	return found && before.isOf(object)
}

// differences returns the settings that differ and that only new instances receive, with their
// values. Vars are omitted: agents receive them, and they can be secret.
func differences(before, after shard.GroupSettings) (settings []string, from, to string) {
	var was, is []string
	add := func(name, a, b string) {
		if a != b {
			settings, was, is = append(settings, name), append(was, name+"="+a), append(is, name+"="+b)
		}
	}
	add("template", before.Template, after.Template)
	switch {
	case len(before.Candidates) == 0 && len(after.Candidates) == 0:
		add("instanceType", before.InstanceType, after.InstanceType)
	case removesKind(before, after):
		add("candidates", kinds(before), kinds(after))
	}
	add("subnets", strings.Join(before.Subnets, "+"), strings.Join(after.Subnets, "+"))
	return settings, strings.Join(was, ","), strings.Join(is, ",")
}

// requested returns before with the changes of config, for a call without a reply. The server
// chooses settings that config omits.
func requested(before *shard.Group, config shard.GroupConfig) shard.Group {
	if before == nil {
		return shard.Group{Size: config.Size}
	}
	after := *before
	after.Size = config.Size
	after.Template = cmp.Or(config.Template, before.Template)
	after.InstanceType = cmp.Or(config.InstanceType, before.InstanceType)
	if len(config.Subnets) > 0 {
		after.Subnets = config.Subnets
	}
	if len(config.Candidates) > 0 {
		after.Candidates = config.Candidates
	}
	return after
}

// removesKind reports whether settings lack an instance type in a market that others have: its
// instances are replaced. Other names, maxima and another order replace none. The instance type of a
// group without candidates counts as Standard: most templates are, and the operator does not know
// their arguments.
func removesKind(before, after shard.GroupSettings) bool {
	return slices.ContainsFunc(candidatesOf(before), func(was shard.Candidate) bool {
		return !slices.ContainsFunc(candidatesOf(after), func(is shard.Candidate) bool {
			sameType := was.InstanceType == is.InstanceType || len(before.Candidates) == 0 && is.InstanceType == "" || len(after.Candidates) == 0 && was.InstanceType == ""
			sameMarket := was.Market == is.Market ||
				len(before.Candidates) == 0 && is.Market == standard || len(after.Candidates) == 0 && was.Market == standard
			return sameType && sameMarket
		})
	})
}

const standard = string(v1beta1.MarketStandard)

// candidatesOf returns the candidates of settings. An instance type is a list of one.
func candidatesOf(settings shard.GroupSettings) []shard.Candidate {
	if len(settings.Candidates) > 0 {
		return settings.Candidates
	}
	return []shard.Candidate{{InstanceType: settings.InstanceType}}
}

// kinds returns instance types and markets as text.
func kinds(settings shard.GroupSettings) string {
	var found []string
	for _, candidate := range candidatesOf(settings) {
		kind := candidate.InstanceType
		if candidate.Market != "" {
			kind = cmp.Or(kind, "template") + "/" + candidate.Market
		}
		found = append(found, cmp.Or(kind, "template"))
	}
	return strings.Join(found, "+")
}

// Reasons of the events about shard groups.
const (
	// reasonShardAbandoned: the instances on a lost shard were given up.
	reasonShardAbandoned = "ShardAbandoned"
	// reasonShardReachable: the shard is connected again.
	reasonShardReachable = "ShardReachable"
	// reasonGroupRetained: the shard group is deleted, but the group stays on the shard.
	reasonGroupRetained = "GroupRetained"
	// reasonGroupShrunk: the shard has accepted a smaller size.
	reasonGroupShrunk = "GroupShrunk"
	// reasonInstancesReplaced: the shard has accepted settings that make it replace the
	// instances.
	reasonInstancesReplaced = "InstancesReplaced"
	// reasonDeletingGroup: the shard has accepted the deletion of the group.
	reasonDeletingGroup = "DeletingGroup"
	// reasonGroupDeleted: the shard has confirmed that the group is deleted.
	reasonGroupDeleted = "GroupDeleted"
)

// recordProblems records conditions that turned False as events. Ready is recorded only
// if an administrator must decide something.
func (c *Controller) recordProblems(object *v1beta1.NstanceShardGroup, status v1beta1.NstanceShardGroupStatus) {
	for kind, action := range map[string]string{
		v1beta1.ConditionShardReachable: "Connect",
		v1beta1.ConditionConfigValid:    "UpsertGroup",
	} {
		if problem := controller.TurnedFalse(object.Status.Conditions, status.Conditions, kind); problem != nil {
			controller.Warn(c.recorder, object, problem.Reason, action, problem.Message)
		}
	}
	if problem := controller.TurnedFalse(object.Status.Conditions, status.Conditions, v1beta1.ConditionReady); problem != nil &&
		problem.Reason == v1beta1.ReasonShardAhead {
		controller.Warn(c.recorder, object, problem.Reason, "UpsertGroup", problem.Message)
	}
}

// recordReachable records that the shard of written is connected again.
func (c *Controller) recordReachable(before *v1beta1.NstanceShardGroupStatus, written *v1beta1.NstanceShardGroup) {
	if meta.IsStatusConditionFalse(before.Conditions, v1beta1.ConditionShardReachable) &&
		meta.IsStatusConditionTrue(written.Status.Conditions, v1beta1.ConditionShardReachable) {
		controller.Record(c.recorder, written, reasonShardReachable, "Connect",
			fmt.Sprintf("shard %q is connected again", written.Spec.Shard))
	}
}
