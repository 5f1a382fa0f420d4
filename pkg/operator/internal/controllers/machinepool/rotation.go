// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/poolplan"
	"nstance.dev/operator/pkg/base/rotation"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// rotationInputs has the inputs that only the rotation of a pool with a policy needs.
type rotationInputs struct {
	now time.Time
	// nodes are by provider id. They are read only if the rotation looks at Nodes.
	nodes map[string]nodeReadiness
	// unseen is why the Nodes cannot be seen, nil if they can.
	unseen *rotation.Stop
}

// rotationDecision is the rotation of a pool with a policy.
type rotationDecision struct {
	// grants are by shard.
	grants []*v1beta1.RotationGrant
	// outdated are the numbers of outdated instances by reason, and moving is how many of the
	// instances are being replaced.
	outdated map[string]int32
	moving   int32
	// unknown is set if a shard may have more outdated instances: it was never read, or has not reported
	// what the policy says about which instances are outdated.
	unknown bool
	// stop is why no instance is replaced, nil if some may be.
	stop *problem
	// wait is the time until the rotation may go on without a change, 0 for never.
	wait time.Duration
}

// observeRotation reads what the rotation of a pool needs.
func (c *Controller) observeRotation(observed *observation) {
	policy := observed.pool.Spec.Rotation
	if policy == nil || observed.paused != "" || !observed.pool.DeletionTimestamp.IsZero() {
		return
	}
	observed.rotationInputs = &rotationInputs{now: c.clock.Now()}
	if !poolplan.LooksAtNodes(policy) || !slices.ContainsFunc(observed.shards, hasOutdated) {
		return
	}
	if !c.nodesSynced() || c.NodesReachable != nil && !c.NodesReachable() {
		observed.rotationInputs.unseen = &rotation.Stop{
			Reason: v1beta1.ReasonWorkloadClusterUnreachable, Message: "the Nodes of new instances cannot be seen",
		}
		return
	}
	observed.rotationInputs.nodes = c.readiness(observed.shards)
}

// hasOutdated reports whether a shard has outdated instances. Without them no Node matters.
func hasOutdated(s shardState) bool {
	return s.reported != nil && s.reported.Progress != nil && len(s.reported.Progress.Outdated) > 0
}

// planRotation decides how far each shard may replace outdated instances, nil for a pool without
// a policy: then the shards decide.
func planRotation(observed observation, replicas int32, sizes []int32) *rotationDecision {
	spec := observed.pool.Spec.Rotation
	if spec == nil || observed.rotationInputs == nil {
		return nil
	}
	policy := poolplan.RotationPolicy(spec, replicas)
	if policy.Blocked == nil {
		policy.Blocked = blockedRotation(observed)
	}
	r := &rotationDecision{outdated: map[string]int32{}}
	shards := make([]rotation.Shard, len(observed.shards))
	var unsupported []string
	for i := range observed.shards {
		shards[i] = observed.shards[i].rotatable(observed.rotationInputs, sizes[i], poolplan.LooksAtNodes(spec))
		reported := observed.shards[i].reported
		r.unknown = r.unknown || shards[i].Unread || isBehind(reported, spec, observed.rotationInputs.now)
		switch {
		case reported == nil:
		case reported.Progress == nil && reported.Revision != nil && shards[i].Size > 0:
			// A server that hides the revision of a group knows less about it than other servers.
			unsupported = append(unsupported, observed.shards[i].id)
		case reported.Progress != nil:
			r.moving += bounded(max(reported.Progress.Above, reported.Progress.Below))
			for reason, n := range reported.Progress.Outdated {
				r.outdated[reason] += bounded(n)
			}
		}
	}
	decision := rotation.Grants(policy, shards, observed.rotationInputs.now)
	for _, grant := range decision.Grants {
		r.grants = append(r.grants, poolplan.NewGrant(grant, spec))
	}
	switch {
	case len(unsupported) > 0:
		r.stop = problemf(v1beta1.ReasonUnsupportedByServer,
			"the servers of these shards do not know spec.rotation, and replace one instance at a time: %s", strings.Join(unsupported, ", "))
	case decision.Stop != nil:
		r.stop = &problem{string(decision.Stop.Reason), decision.Stop.Message}
	case policy.Blocked != nil && policy.Blocked.Reason == v1beta1.ReasonInvalidSchedule:
		// The user should know it before something is outdated.
		r.stop = &problem{v1beta1.ReasonInvalidSchedule, policy.Blocked.Message}
	}
	if r.stop == nil || !slices.Contains(serious, r.stop.reason) {
		r.stop = cmp.Or(forcedAgeNear(observed, &policy, shards), r.stop)
	}
	if !decision.Next.IsZero() {
		r.wait = decision.Next.Sub(observed.rotationInputs.now)
	}
	return r
}

// serious are the reasons for which a rotation does not go on until a user acts.
var serious = []string{v1beta1.ReasonUnsupportedByServer, v1beta1.ReasonRotationFailed, v1beta1.ReasonInvalidSchedule}

// forcedAgeNear returns a warning if the windows are too short for the instances that are left: then the
// shards replace them outside of windows, because the forced age of a shard is not bound by a policy.
// The message does not change with the time.
func forcedAgeNear(observed observation, policy *rotation.Policy, shards []rotation.Shard) *problem {
	var first time.Time
	for i := range observed.shards {
		reported := observed.shards[i].reported
		if reported == nil || reported.Progress == nil {
			continue
		}
		if at := reported.Progress.ForcedAt; at.After(observed.rotationInputs.now) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if first.IsZero() {
		return nil
	}
	steps, inTime := policy.Forecast(shards, observed.rotationInputs.now, first)
	if inTime {
		return nil
	}
	return problemf(v1beta1.ReasonForcedAgeNear,
		"the first of them reaches the forced age of its shard at %s, and is then replaced at any time; before, the rotation cannot make the %d steps that are left",
		first.UTC().Format(time.RFC3339), steps)
}

// blockedRotation returns the state of the pool for which its rotation waits, nil for none.
func blockedRotation(observed observation) *rotation.Stop {
	states := observed.pool.Spec.Rotation.PauseWhile
	if observed.rotationInputs.unseen != nil {
		return observed.rotationInputs.unseen
	}
	if away := unreachable(observed.shards); len(away) > 0 && slices.Contains(states, v1beta1.PauseWhileShardUnreachable) {
		return &rotation.Stop{Reason: v1beta1.ReasonShardUnreachable, Message: "these shards are not connected: " + strings.Join(away, ", ")}
	}
	if drains := blockedReplicas(observed); drains > 0 && slices.Contains(states, v1beta1.PauseWhileDrainBlocked) {
		return &rotation.Stop{Reason: v1beta1.ReasonDrainBlocked, Message: fmt.Sprintf("%d drains are blocked, for the reasons that the shard groups have", drains)}
	}
	return nil
}

// rotatable converts a shard for package rotation. An older server, which does not know grants, counts
// as not connected. What a server used when it was connected, it may be using still.
func (s *shardState) rotatable(observed *rotationInputs, size int32, looksAtNodes bool) rotation.Shard {
	converted := rotation.Shard{ID: s.id, Size: size, Unread: !s.synced && s.reported == nil}
	if s.group != nil {
		converted.Grant = poolplan.GrantOf(s.group.Spec.Rotation)
	}
	if !s.configured || !s.synced || !s.reachable {
		if converted.InForce = converted.Grant; s.reported != nil {
			converted.InForce, converted.Instances = reportedGrant(s.reported), s.rotatableInstances(observed, looksAtNodes)
			if progress := s.reported.Progress; progress != nil {
				converted.Above, converted.Below = bounded(progress.Above), bounded(progress.Below)
			}
		}
		return converted
	}
	if s.reported == nil {
		// There is nothing yet that could rotate without a grant.
		converted.Connected, converted.InForce = true, &rotation.Grant{}
		if s.group == nil {
			converted.Grant = &rotation.Grant{}
		}
		return converted
	}
	progress := s.reported.Progress
	if progress == nil || len(progress.Target) > v1beta1.MaxTarget {
		return converted
	}
	converted.Connected = true
	converted.InForce = reportedGrant(s.reported)
	for _, n := range progress.Outdated {
		converted.Outdated = bounded(converted.Outdated + bounded(n))
	}
	converted.UpToDate, converted.Target = bounded(progress.UpToDate), progress.Target
	converted.Above, converted.Below = bounded(progress.Above), bounded(progress.Below)
	converted.Instances = s.rotatableInstances(observed, looksAtNodes)
	return converted
}

// rotatableInstances returns the instances that a server has reported last, without those that are being
// deleted. An older server does not report which of them are outdated.
func (s *shardState) rotatableInstances(observed *rotationInputs, looksAtNodes bool) (instances []rotation.Instance) {
	if s.reported.Progress == nil {
		return nil
	}
	for _, instance := range s.reported.Instances {
		if !s.draining.Has(instance.ID) && !instance.State.IsTerminating() {
			instances = append(instances, rotatableInstance(&instance, observed, looksAtNodes))
		}
	}
	return instances
}

// reportedGrant returns the grant that a server has reported, nil without a grant.
func reportedGrant(group *shard.Group) *rotation.Grant {
	grant := group.Rotation
	if grant == nil {
		return nil
	}
	return &rotation.Grant{
		MaxSurge: bounded(grant.MaxSurge), MaxUnavailable: bounded(grant.MaxUnavailable), UpToDate: bounded(grant.UpToDate),
		NotAfter: grant.NotAfter, Target: grant.Target,
	}
}

// bounded returns a number that a server has sent, as far as a server may mean it: no number of one
// server adds to the budget of another.
func bounded(n int32) int32 { return min(max(n, 0), v1beta1.MaxReplicas) }

func rotatableInstance(instance *shard.Instance, observed *rotationInputs, looksAtNodes bool) rotation.Instance {
	converted := rotation.Instance{ID: instance.ID, Outdated: instance.Outdated != "", Created: time.Unix(instance.Created, 0)}
	node := observed.nodes[instance.ProviderID]
	switch {
	case instance.State != shard.InstanceRunning:
		converted.Problem = "does not run"
	case !looksAtNodes:
		converted.Ready, converted.ReadySince = true, converted.Created
	default:
		converted.Ready, converted.ReadySince, converted.Problem = node.ready, node.since, node.problem
	}
	return converted
}

// grant returns the grant for a shard, or the present grant of its shard group if the rotation is not
// decided now.
func (r *rotationDecision) grant(i int, state *shardState) *v1beta1.RotationGrant {
	switch {
	case r != nil:
		return r.grants[i]
	case state.group != nil:
		return state.group.Spec.Rotation
	}
	return nil
}

// pauseRotation returns the shard groups to write for a pool whose sizes cannot be decided now, because
// its rotation is paused: a user who stops a rotation does not have to mend something else first.
func pauseRotation(observed observation) (apply []wantedShardGroup) {
	policy := observed.pool.Spec.Rotation
	if policy == nil || !ptr.Deref(policy.Paused, false) {
		return nil
	}
	for _, group := range observed.shardGroups {
		grant, paused := group.Spec.Rotation, rotation.Grant{}
		if !group.DeletionTimestamp.IsZero() || grant != nil && grant.UpToDate == 0 {
			continue
		}
		if grant != nil {
			paused.MaxSurge, paused.MaxUnavailable = grant.MaxSurge, grant.MaxUnavailable
		}
		want := unchanged(group)
		want.spec.Rotation = poolplan.NewGrant(paused, policy)
		apply = append(apply, want)
	}
	return apply
}

// delay returns the time until the rotation may go on, 0 for never.
func (r *rotationDecision) delay() time.Duration {
	if r == nil {
		return 0
	}
	return r.wait
}

// lasting are the reasons that the condition has although nothing is outdated: the next rotation would
// not go on.
var lasting = []string{v1beta1.ReasonUnsupportedByServer, v1beta1.ReasonInvalidSchedule}

// isBehind reports whether the server of a group, which may be nil, counts the outdated instances of
// another policy, or its clock is behind. A server that does not know grants counts none.
func isBehind(reported *shard.Group, spec *v1beta1.RotationPolicy, now time.Time) bool {
	if reported == nil || reported.Progress == nil {
		return false
	}
	wanted := controllers.ShardGrant(poolplan.NewGrant(rotation.Grant{}, spec))
	if reported.Rotation == nil || !reported.Rotation.After.Equal(wanted.After) || reported.Rotation.MaxAgeSeconds != wanted.MaxAgeSeconds {
		return true
	}
	return !wanted.After.IsZero() && !wanted.After.After(now) && slices.ContainsFunc(reported.Instances, func(i shard.Instance) bool {
		return i.Outdated == "" && !i.State.IsTerminating() && i.Created != 0 && i.Created < wanted.After.Unix()
	})
}

// total returns how many instances are outdated, as far as the shards were read.
func (r *rotationDecision) total() int32 {
	var total int32
	for _, n := range r.outdated {
		total = bounded(total + n)
	}
	return total
}

// known reports whether it is known if instances are outdated. Otherwise the condition stays, also its
// generation: a rotation does not end because another operator has not read its shards yet.
func (r *rotationDecision) known() bool {
	return !r.unknown || r.total() > 0 || r.stop != nil && slices.Contains(lasting, r.stop.reason)
}

// condition returns the condition RollingOut.
func (r *rotationDecision) condition(replicas int32) metav1.Condition {
	condition := metav1.Condition{Type: v1beta1.ConditionRollingOut, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonNotRollingOut}
	total := r.total()
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(r.outdated)) {
		reasons = append(reasons, fmt.Sprintf("%s %d", reason, r.outdated[reason]))
	}
	if total == 0 {
		if r.stop != nil && slices.Contains(lasting, r.stop.reason) {
			condition.Reason, condition.Message = r.stop.reason, r.stop.message
		}
		return condition
	}
	condition.Status, condition.Reason = metav1.ConditionTrue, v1beta1.ReasonRollingOut
	condition.Message = fmt.Sprintf("%d of %d instances are outdated (%s); %d are being replaced", total, replicas, strings.Join(reasons, ", "), r.moving)
	if r.stop != nil {
		condition.Reason = r.stop.reason
		condition.Message = fmt.Sprintf("%d of %d instances are outdated (%s): %s", total, replicas, strings.Join(reasons, ", "), r.stop.message)
	}
	return condition
}

// newOutdatedMetric returns the metric of reportRotation.
func newOutdatedMetric(registry prometheus.Registerer) *prometheus.GaugeVec {
	metric := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "nstance_operator_pool_outdated_instances",
		Help: "Outdated instances of pools with a policy for their rotation, by the reason for which the rotation goes on or does not.",
	}, []string{"pool", "reason"})
	registry.MustRegister(metric)
	return metric
}

// reportRotation sets the metric of a pool, and removes it for a pool without outdated instances.
func (c *Controller) reportRotation(pool string, condition *metav1.Condition, r *rotationDecision) {
	c.outdatedMetric.DeletePartialMatch(prometheus.Labels{"pool": pool})
	if r == nil || condition == nil || condition.Status != metav1.ConditionTrue || r.total() == 0 {
		return
	}
	c.outdatedMetric.WithLabelValues(pool, condition.Reason).Set(float64(r.total()))
}
