// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// candidate is the state of a configured shard in respect of one group.
type candidate struct {
	id string
	// synced: the groups of the shard are known.
	synced bool
	// reachable: the shard is connected.
	reachable bool
	// hasGroup: the shard has the group, and is not deleting it.
	hasGroup bool
	// declined: the shard has declined the request, and would do so again.
	declined bool
	// nstanceMachines counts the NstanceMachines of the group on the shard.
	nstanceMachines int
}

// choose returns the shard for a new NstanceMachine: the requested shard if it is configured,
// and otherwise the connected shard with the group that has the fewest NstanceMachines of it,
// in case of a tie the first by id. It returns a problem if no shard qualifies.
func choose(requested string, candidates []candidate) (string, *problem) {
	var best *candidate
	var disconnected, notSynced []string
	for i, shard := range candidates {
		switch {
		case requested != "":
			if shard.id == requested {
				return requested, nil
			}
		case !shard.synced:
			notSynced = append(notSynced, shard.id)
		case !shard.hasGroup, shard.declined:
		case !shard.reachable:
			disconnected = append(disconnected, shard.id)
		case best == nil || cmp.Or(cmp.Compare(shard.nstanceMachines, best.nstanceMachines), cmp.Compare(shard.id, best.id)) < 0:
			best = &candidates[i]
		}
	}
	switch {
	case requested != "":
		return "", &problem{v1beta1.ReasonUnknownShard, fmt.Sprintf("shard %q is not configured", requested)}
	case best != nil:
		return best.id, nil
	case len(notSynced) > 0:
		return "", &problem{v1beta1.ReasonNotSynced,
			fmt.Sprintf("no shard whose groups are known can be used; not known yet: %s", strings.Join(notSynced, ", "))}
	case len(disconnected) > 0:
		return "", &problem{v1beta1.ReasonNoShard,
			fmt.Sprintf("no shard that has the group is connected; not connected: %s", strings.Join(disconnected, ", "))}
	default:
		return "", &problem{v1beta1.ReasonNoShard, "no shard has the group"}
	}
}

// placement is a choice that the handler of NstanceMachines has not seen yet.
type placement struct {
	uid          types.UID
	group, shard string
	// from is the shard that the cache shows, "" before the first placement.
	from string
}

// placements counts the NstanceMachines of each group on each shard, so that a placement visits no
// other NstanceMachine: a group may have thousands.
type placements struct {
	mu sync.Mutex
	// counts are by placementKey. They contain the NstanceMachines that the handler has seen, and
	// chosen.
	counts map[string]int
	// chosen are the placements that the handler has not seen.
	chosen map[cache.ObjectName]placement
}

func newPlacements() *placements {
	return &placements{counts: make(map[string]int), chosen: make(map[cache.ObjectName]placement)}
}

// changed counts a change of an NstanceMachine in the cache, as a handler receives it.
func (p *placements) changed(before, after *v1beta1.NstanceMachine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count(before, -1)
	p.count(after, 1)
	if before == nil {
		before = after
	}
	key := cache.MetaObjectToName(before)
	if placed, found := p.chosen[key]; found && !placed.isPending(after) {
		p.drop(key)
	}
}

// count adds n to the count of an NstanceMachine, which may be nil. The caller holds mu.
func (p *placements) count(nstanceMachine *v1beta1.NstanceMachine, n int) {
	if nstanceMachine == nil {
		return
	}
	if at := locate(nstanceMachine); at.shardID != "" && !at.poolMember {
		p.add(string(nstanceMachine.Spec.GroupRef.Name), at.shardID, n)
	}
}

// isPending reports whether an NstanceMachine, nil if it was deleted, does not show a placement yet.
func (p placement) isPending(cached *v1beta1.NstanceMachine) bool {
	return cached != nil && cached.UID == p.uid && cached.Status.Shard == p.from
}

// add changes a count. The caller holds mu.
func (p *placements) add(group, shard string, n int) {
	key := placementKey(group, shard)
	if p.counts[key] += n; p.counts[key] == 0 {
		delete(p.counts, key)
	}
}

// choose records a placement. The caller holds mu.
func (p *placements) choose(key cache.ObjectName, placed placement) {
	p.chosen[key] = placed
	p.add(placed.group, placed.shard, 1)
}

// drop forgets a placement. The caller holds mu.
func (p *placements) drop(key cache.ObjectName) {
	if placed, found := p.chosen[key]; found {
		delete(p.chosen, key)
		p.add(placed.group, placed.shard, -1)
	}
}

// place chooses the shard of an NstanceMachine. It holds a lock and counts earlier placements,
// so that many new NstanceMachines are spread evenly. declined are the rejections by other
// shards.
func (c *Controller) place(observed observation, declined map[string]rejection) (string, *problem) {
	nstanceMachine := observed.nstanceMachine
	group := string(nstanceMachine.Spec.GroupRef.Name)
	key := cache.MetaObjectToName(nstanceMachine)
	requested := cmp.Or(string(nstanceMachine.Spec.Shard), observed.machine.Spec.FailureDomain)

	c.placements.mu.Lock()
	defer c.placements.mu.Unlock()
	c.placements.drop(key)
	chosen, blocked := choose(requested, c.candidates(requested, c.groups.ShardsWith(group), declined, observed))
	if blocked != nil {
		// The message names shards that do not have the group.
		chosen, blocked = choose(requested, c.candidates(requested, c.shards.Shards(), declined, observed))
	}
	if blocked != nil {
		return "", blocked
	}
	placed := placement{uid: nstanceMachine.UID, group: group, shard: chosen, from: nstanceMachine.Status.Shard}
	// The handler drops a placement when it sees another shard than from. It does not if it has seen
	// that before, or will never see it.
	if cached, err := c.nstanceMachineLister.Get(key.Name); err == nil && placed.isPending(cached) && chosen != placed.from {
		c.placements.choose(key, placed)
	}
	return chosen, nil
}

// candidates returns the shards among ids that are configured, or only the requested shard. The caller
// holds placements.mu.
func (c *Controller) candidates(requested string, ids []string, declined map[string]rejection, observed observation) []candidate {
	if requested != "" {
		ids = []string{requested}
	}
	group := string(observed.nstanceMachine.Spec.GroupRef.Name)
	candidates := make([]candidate, 0, len(ids))
	for _, id := range ids {
		if !c.shards.Has(id) {
			continue
		}
		found := candidate{id: id, synced: c.groups.HasSynced(id), nstanceMachines: c.placements.counts[placementKey(group, id)]}
		found.reachable, _ = c.groups.Reachable(id)
		if has, ok := c.groups.Get(id, group); ok {
			found.hasGroup = !has.Deleting
			found.declined = declinedBy(declined, id, has.ETag, observed)
		}
		candidates = append(candidates, found)
	}
	return candidates
}

// A shard that declines a create request (shard.IsDeclined) has no instance for it, so that
// another shard may be chosen. After every other error the instance may exist.

// movable reports whether the operator has chosen the shard of an NstanceMachine, and may
// choose another.
func movable(observed observation) bool {
	return !observed.poolMember && observed.nstanceMachine.Spec.Shard == "" &&
		observed.machine != nil && observed.machine.Spec.FailureDomain == ""
}

// reassign chooses another shard for an NstanceMachine whose request the shard has
// declined. It returns "" while the other shards cannot be used, or have declined it too.
func (c *Controller) reassign(ctx context.Context, observed observation, state *syncState) string {
	if state.declined == nil {
		state.declined = make(map[string]rejection)
	}
	state.declined[observed.shardID] = *state.rejection
	chosen, blocked := c.place(observed, state.declined)
	if blocked != nil {
		return ""
	}
	klog.FromContext(ctx).Info("Another shard chosen, because the shard has declined the request",
		"shard", chosen, "declinedBy", observed.shardID, "message", state.rejection.message)
	state.rejection, state.located = nil, false
	return chosen
}

// checkLocation returns an error unless the cache has the present version of an
// NstanceMachine. Its shard may change, and a request to a former shard would create a second
// instance. If this process has written the location, no check is needed: the location is not
// used before the cache shows that write.
func (c *Controller) checkLocation(ctx context.Context, observed observation, state *syncState) error {
	if state.located || !movable(observed) {
		return nil
	}
	cached := observed.nstanceMachine
	current, err := c.nstanceMachines.Get(ctx, cached.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read NstanceMachine %s: %w", klog.KObj(cached), err)
	}
	if at := locate(current); current.UID != cached.UID || at.shardID != observed.shardID || at.requestID != observed.requestID {
		return fmt.Errorf("the cache does not show that NstanceMachine %s is on shard %q", klog.KObj(cached), locate(current).shardID)
	}
	return nil
}

// declinedBy reports whether a shard has declined the request, and would do so again.
func declinedBy(declined map[string]rejection, shard, etag string, observed observation) bool {
	last, found := declined[shard]
	return found && last.applies(etag, observed.now)
}

// minCapacityRetry and maxCapacityRetry bound the growing delay before a shard without
// capacity is requested again. The other shards are requested at once.
const (
	minCapacityRetry = 15 * time.Second
	maxCapacityRetry = 5 * time.Minute
)

// rejectForCapacity stores that the shard has declined the request for lack of capacity
// (shard.IsOutOfCapacity).
func (s *syncState) rejectForCapacity(observed observation, message string) outcome {
	var before int
	for _, last := range []*rejection{s.rejection, s.declinedBy(observed.shardID)} {
		if last != nil && last.noCapacity > before {
			before = last.noCapacity
		}
	}
	delay := maxCapacityRetry
	if before < 5 {
		delay = min(delay, minCapacityRetry<<before)
	}
	s.rejection = &rejection{
		etag: observed.etag, until: observed.now.Add(delay), reason: v1beta1.ReasonOutOfCapacity, message: message,
		declined: true, noCapacity: before + 1,
	}
	return outcome{problem: &problem{v1beta1.ReasonOutOfCapacity, message}, wait: delay}
}

// declinedBy returns the last rejection of the request by a former shard, nil without a
// rejection.
func (s *syncState) declinedBy(shard string) *rejection {
	if last, found := s.declined[shard]; found {
		return &last
	}
	return nil
}
