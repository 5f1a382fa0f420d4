// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/stock"
)

// rotate replaces instances that work and are outdated, as far as the grant allows
// (docs/server.md#rotation). Without a surplus it creates replacements, and scaleDown deletes the
// outdated instances when these work. If the grant allows that fewer instances work, the worst
// instance leaves first, and scaleUp creates the replacement.
//
// The number of instances that are up to date decides, not the number of steps: it is the same
// after a step that another leader has made, or that is planned twice.
func (p *planner) rotate() {
	grant := p.grant()
	if !p.rotates() || len(p.absent) > 0 {
		return
	}
	var outdated []*instance.Instance
	for _, i := range p.staying {
		if problem := p.problemOf(i); works(i) && problem.isOutdated() {
			outdated = append(outdated, i)
		}
	}
	slices.SortFunc(outdated, p.compareSurplus)
	reasons := slices.SortedFunc(slices.Values(outdated), p.compareProblems)
	for n := range p.startable(len(outdated)) {
		least := p.size - int(grant.MaxUnavailable)
		switch {
		case p.present()+p.created >= p.size && p.total < p.size+int(grant.MaxSurge):
			p.replaceOutdated(reasons, n)
		case p.mayLeave() && p.present()+p.created <= p.size && p.serving() > least:
			i := outdated[0]
			outdated = outdated[1:]
			p.staying = slices.DeleteFunc(p.staying, func(other *instance.Instance) bool { return other == i })
			p.startDeletion(i, p.problemOf(i).reason())
		default:
			return
		}
	}
}

// replaceOutdated plans the replacement of the n-th of the outdated instances, which are in the order in
// which they leave. In a group with candidates the replacement of an instance that is not preferred must
// be of a better candidate, so those that have replacements already are left out.
func (p *planner) replaceOutdated(outdated []*instance.Instance, n int) {
	if len(p.choices) > 0 {
		n = min(p.present()+p.created-p.size, len(outdated)-1)
	}
	problem, below := p.problemOf(outdated[n]), 0
	if problem == notPreferred {
		below = p.assigned[outdated[n].ID]
	}
	p.createBelow(problem.reason(), below)
}

// isOutdated reports whether instances with the problem work, and are replaced as the grant of the
// rotation allows.
func (p problem) isOutdated() bool { return p >= drifted && p <= notPreferred }

// mayLeave reports whether a working instance may leave before its replacement is created. After an
// instance that did not come up they leave one at a time, and as seldom as instances are created.
func (p *planner) mayLeave() bool {
	return p.mayCreate() && (p.createAfter.IsZero() || p.moving() == 0)
}

// startable returns how many of the outdated instances that work may be replaced now.
func (p *planner) startable(outdated int) int {
	grant := p.grant()
	inSteps := int(grant.MaxSurge) + int(grant.MaxUnavailable) - p.moving()
	return max(0, min(outdated, int(grant.UpToDate)-p.upToDate(), inSteps, maxCreations+1-p.created))
}

// grant returns what a rotation may do. Without a grant of the operator it is one instance more than
// the size, at any time.
func (p *planner) grant() groups.RotationGrant {
	if p.rotation == nil {
		return groups.RotationGrant{MaxSurge: 1, UpToDate: int32(p.size)}
	}
	return *p.rotation
}

// rotates reports whether replacements may be started now.
func (p *planner) rotates() bool {
	grant := p.grant()
	return (grant.NotAfter == nil || p.now.Before(*grant.NotAfter)) && (grant.Target == "" || grant.Target == p.target())
}

// target names what the instances are compared with. The number of instances that are up to date has
// no meaning for another target: with a new configuration it is 0, and a grant for the last steps of
// the one before would replace nearly all instances at once.
func (p *planner) target() string {
	after := ""
	if p.replacementsDue() {
		after = p.grant().After.UTC().Format(time.RFC3339Nano)
	}
	sum := sha256.Sum256([]byte(p.comparedWith() + "\n" + after))
	return hex.EncodeToString(sum[:targetSize])
}

// targetSize is how many bytes of a hash distinguish two targets of a group.
const targetSize = 8

// surge returns how many instances there may be above the size, whatever they are created for. A
// grant limits rotations only: other replacements may always have one.
func (p *planner) surge() int { return max(1, int(p.grant().MaxSurge)) }

// unavailable returns how many instances below the size may work while a surplus instance with
// this problem is deleted.
func (p *planner) unavailable(problem problem) int {
	if !problem.isOutdated() || !p.rotates() || !p.createAfter.IsZero() {
		return 0
	}
	return int(p.grant().MaxUnavailable)
}

// upToDate returns how many instances are up to date. Those that are missing count: they are
// created with the present configuration.
func (p *planner) upToDate() int {
	count := max(p.size, p.present()+p.created)
	for _, i := range p.staying {
		if p.outdatedReason(i) != "" {
			count--
		}
	}
	return count
}

// moving returns how many instances do not work yet or any more, are missing or above the size. An
// instance that leaves may be missing too, and then counts once.
func (p *planner) moving() int {
	starting := p.created
	for _, i := range p.staying {
		if !works(i) {
			starting++
		}
	}
	surplus := p.present() + p.created - p.size
	return max(starting, surplus) + max(p.leaving, -surplus)
}

// serving returns how many of the staying instances count for the size.
func (p *planner) serving() int {
	count := 0
	for _, i := range p.staying {
		if isServing(i) {
			count++
		}
	}
	return count
}

// works reports whether an instance runs and its agent, if it has one, reports.
func works(i *instance.Instance) bool {
	return i.State == instance.Running && i.Agent.State != instance.AgentUnknown
}

// isRotated reports whether instances are deleted for this reason because they are outdated.
func isRotated(reason string) bool {
	return reason == instance.ReasonConfigDrift || reason == instance.ReasonExpired || reason == instance.ReasonRotated ||
		reason == instance.ReasonNotPreferred
}

// maxAge returns the age at which the operator wants another instance, zero for never.
func (p *planner) maxAge() time.Duration {
	return time.Duration(p.grant().MaxAgeSeconds) * time.Second
}

// replacementRequested reports whether the operator wants another instance for an instance of this
// age.
func (p *planner) replacementRequested(i *instance.Instance) bool {
	return p.replacementsDue() && i.CreatedAt.Before(*p.grant().After)
}

// replacementsDue reports whether the time has passed after which the operator wants other instances.
// Before that, new instances would be outdated too.
func (p *planner) replacementsDue() bool {
	after := p.grant().After
	return after != nil && !p.now.Before(*after)
}

// outdatedReason returns why an instance is outdated, "" if it is up to date. Its health does not
// matter.
func (p *planner) outdatedReason(i *instance.Instance) string {
	switch {
	case p.hasDrifted(i):
		return drifted.reason()
	case p.replacementRequested(i):
		return rotated.reason()
	case p.reachedAge(i, p.expiry.ForcedAge) || p.reachedAge(i, p.expiry.EligibleAge) || p.reachedAge(i, p.maxAge()):
		return eligible.reason()
	case p.notPreferred[i.ID]:
		return notPreferred.reason()
	}
	return ""
}

// setCandidates sets the candidates of a group, and what is known about their capacity.
func (s *state) setCandidates(group *groups.Group, known *stock.Stock) {
	s.choices, s.returnAfter = group.Choices(), time.Duration(group.ReturnAfterSeconds)*time.Second
	s.freeSince = make([]time.Time, len(s.choices))
	for n, c := range s.choices {
		s.freeSince[n], _ = known.Since(group.Key, c.Hash)
	}
}

// assign assigns the candidates of the group to its instances, and finds those that are not preferred.
func (p *planner) assign() {
	if len(p.choices) == 0 {
		return
	}
	present := slices.Concat(p.staying, p.absent)
	compared := make([]candidates.Instance, len(present))
	for n, i := range present {
		compared[n] = stock.Of(i)
	}
	assigned := candidates.Assign(p.choices, compared)
	p.assigned = make(map[string]int, len(present))
	for n, i := range present {
		p.assigned[i.ID] = assigned[n]
	}
	if p.returnAfter > 0 {
		returns := candidates.Returns{
			Choices: p.choices, Instances: compared, Assigned: assigned, Size: p.size, Surge: p.surge(),
			Available: func(at int) bool {
				since := p.freeSince[at]
				return !since.IsZero() && !p.now.Before(since.Add(p.returnAfter))
			},
			// What does not exist yet is created of the best candidate anyway.
			Exists: func(n int) bool { return n < len(p.staying) && !isUncreated(present[n]) },
			// Its creation may have failed for another reason than a lack of capacity. Without this,
			// it would be given up, and created again at once.
			Requested: func(n int) bool { return n < len(p.staying) && isUncreated(present[n]) },
		}
		p.notPreferred = map[string]bool{}
		for n, found := range returns.Find() {
			p.notPreferred[present[n].ID] = found
		}
	}
	for _, i := range slices.SortedFunc(slices.Values(p.staying), p.compareSurplus) {
		if p.problemOf(i) < uncreated {
			p.replaceable = append(p.replaceable, i.ID)
		}
	}
}

// recordedBelow returns, by instance id, the candidate that an instance must be better than which has
// a record and does not exist yet: it replaces one that is not preferred if there are too many
// instances. Otherwise it could be of the same candidate, and nothing were gained.
func (p *planner) recordedBelow(instances []*instance.Instance) map[string]int {
	if len(p.notPreferred) == 0 {
		return nil
	}
	var uncreated, others []*instance.Instance
	for _, i := range instances {
		switch {
		case i.OnDemand:
		case isUncreated(i):
			uncreated = append(uncreated, i)
		default:
			others = append(others, i)
		}
	}
	slices.SortFunc(others, p.compareSurplus)
	below := map[string]int{}
	for n := range min(p.present()+p.created-p.size, len(uncreated), len(others)) {
		if p.problemOf(others[n]) == notPreferred {
			below[uncreated[len(uncreated)-1-n].ID] = p.assigned[others[n].ID]
		}
	}
	return below
}

// comparedWith identifies what instances are compared with. The order of the candidates, and how many
// instances they may have, matters only if instances return to better ones.
func (p *planner) comparedWith() string {
	if len(p.choices) == 0 {
		return p.infraConfigHash
	}
	var parts []string
	for _, c := range p.choices {
		part := c.Hash
		if p.returnAfter > 0 {
			part += "*" + strconv.Itoa(int(ptr.Deref(c.Max, -1)))
		}
		parts = append(parts, part)
	}
	if p.returnAfter == 0 {
		slices.Sort(parts)
		parts = slices.Compact(parts)
	}
	return strings.Join(parts, "\n")
}

// rotationProgress returns the progress of the rotation of a group.
func rotationProgress(s state, now time.Time) instance.RotationProgress {
	p := newPlanner(s, now)
	progress := instance.RotationProgress{
		Outdated: map[string]int{}, UpToDate: p.upToDate(), Above: max(0, p.present()+p.leaving-p.size), Below: p.size,
		Target: p.target(),
	}
	for _, i := range p.staying {
		if works(i) {
			progress.Below--
		}
		if reason := p.outdatedReason(i); reason != "" {
			progress.Outdated[reason]++
			progress.ForcedAt = p.earlierForced(i, progress.ForcedAt)
		}
	}
	progress.Below = max(0, progress.Below)
	return progress
}

// earlierForced returns when an instance reaches the forced age, if that is earlier than another time,
// which may be zero. What has reached the age is being replaced.
func (p *planner) earlierForced(i *instance.Instance, other time.Time) time.Time {
	at := i.CreatedAt.Add(p.expiry.ForcedAge)
	if p.expiry.ForcedAge == 0 || !at.After(p.now) || !other.IsZero() && !at.Before(other) {
		return other
	}
	return at
}
