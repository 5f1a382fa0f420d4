// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// audited returns a harness whose shard has a group, and the audit log.
func audited(t *testing.T, object *v1beta1.NstanceShardGroup) (*harness, *audittest.Log) {
	t.Helper()
	h, log := newHarness(t, object), audittest.NewLog()
	h.Ctx = log.Context(h.Ctx)
	h.setGroup(reported())
	return h, log
}

// syncOnce syncs, and then puts the group that the shard reports into the cache.
func (h *harness) syncOnce(report func(*shard.Group)) {
	h.T.Helper()
	h.Show()
	_, _, _ = h.SyncStale()
	h.setGroup(changed(h.group(), report))
}

func TestShrinkingIsAudited(t *testing.T) {
	h, log := audited(t, newObject())
	h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) { return accept(config) }
	h.syncOnce(func(*shard.Group) {})
	log.Expect(t)
	h.ExpectEvents()

	h.change(func(o *v1beta1.NstanceShardGroup) { o.Spec.Size, o.Spec.Vars["token"] = 1, "secret" })
	for range 2 {
		h.syncOnce(func(*shard.Group) {})
	}
	log.Expect(t, "Audit: shrink group shard=a group=workers from=3 to=1 generation=2 writer=written: replicas reason=scale-down result=accepted requestID=ID")
	h.ExpectEvents("Normal GroupShrunk from 3 to 1 instances; requestID ID; written: replicas")
	assert.NotContains(t, log.Text(), "secret")

	h.syncOnce(func(g *shard.Group) { g.Size = 5 })
	log.Take()
	h.Events()
	h.syncOnce(func(*shard.Group) {})
	log.Expect(t, "Audit: shrink group shard=a group=workers from=5 to=1 generation=2 writer=written: replicas reason=drift result=accepted requestID=ID")
}

func TestReplacingInstancesIsAudited(t *testing.T) {
	h, log := audited(t, newObject())
	h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) { return accept(config) }
	h.change(func(o *v1beta1.NstanceShardGroup) { o.Spec.InstanceType, o.Spec.Vars["token"] = "huge", "secret" })
	for range 2 {
		h.syncOnce(func(*shard.Group) {})
	}
	log.Expect(t, "Audit: replace instances of group shard=a group=workers from=instanceType=large to=instanceType=huge generation=2"+
		" writer=written: instanceType reason=config-change result=accepted requestID=ID")
	h.ExpectEvents("Normal InstancesReplaced the instances are replaced: from instanceType=large to instanceType=huge; requestID ID; written: instanceType")
	assert.NotContains(t, log.Text(), "secret")
}

// An entry is written only for candidates whose instances are replaced.
func TestReplacedCandidatesAreAudited(t *testing.T) {
	alone := func(instanceType string) shard.GroupSettings { return shard.GroupSettings{InstanceType: instanceType} }
	of := func(candidates ...shard.Candidate) shard.GroupSettings {
		// A server may report the type of the template beside the candidates.
		return shard.GroupSettings{InstanceType: "small", Candidates: candidates}
	}
	spot, large := shard.Candidate{Name: "spot", Market: "Spot"}, shard.Candidate{Name: "large", InstanceType: "large", Market: "Standard"}
	renamed, bounded := spot, spot
	renamed.Name, bounded.MaxInstances = "cheap", ptr.To[int32](2)
	for name, test := range map[string]struct {
		before, after shard.GroupSettings
		from, to      string
	}{
		"a candidate is added":         {of(spot), of(spot, large), "", ""},
		"another order":                {of(spot, large), of(large, spot), "", ""},
		"another name":                 {of(spot), of(renamed), "", ""},
		"another maximum":              {of(spot, large), of(bounded, large), "", ""},
		"a candidate is removed":       {of(spot, large), of(spot), "candidates=template/Spot+large/Standard", "candidates=template/Spot"},
		"another market":               {of(spot), of(shard.Candidate{Name: "spot", Market: "Standard"}), "candidates=template/Spot", "candidates=template/Standard"},
		"the type becomes a candidate": {alone("large"), of(spot, large), "", ""},
		"the type is no candidate":     {alone("huge"), of(large), "candidates=huge", "candidates=large/Standard"},
		"the last candidate stays":     {of(large), alone("large"), "", ""},
		"the candidates are removed":   {of(large, spot), alone("large"), "candidates=large/Standard+template/Spot", "candidates=large"},
	} {
		_, from, to := differences(test.before, test.after)
		assert.Equal(t, test.from, from, name)
		assert.Equal(t, test.to, to, name)
	}
	after := requested(&shard.Group{GroupSettings: of(large)}, shard.GroupConfig{GroupSettings: of(spot)})
	assert.Equal(t, []shard.Candidate{spot}, after.Candidates)
}

// TestFailedCallsAreAudited: each attempt is audited, and no event is recorded.
func TestFailedCallsAreAudited(t *testing.T) {
	h, log := audited(t, newObject())
	h.change(func(o *v1beta1.NstanceShardGroup) { o.Spec.Size = 1 })
	h.Fake.OnUpsert = func(_, _ string, _ shard.GroupConfig) (shard.Group, error) {
		return shard.Group{}, status.Error(codes.InvalidArgument, "no")
	}
	h.syncOnce(func(*shard.Group) {})
	log.Expect(t, "Audit: shrink group shard=a group=workers from=3 to=1 generation=2 writer=written: replicas reason=scale-down result=rejected"+
		" err=rpc error: code = InvalidArgument desc = no requestID=ID")

	h, log = audited(t, newObject())
	h.change(func(o *v1beta1.NstanceShardGroup) { o.Spec.Size = 1 })
	h.Fake.OnUpsert = func(_, _ string, _ shard.GroupConfig) (shard.Group, error) {
		return shard.Group{}, status.Error(codes.Unavailable, "away")
	}
	h.syncOnce(func(*shard.Group) {})
	h.syncOnce(func(*shard.Group) {})
	lines := log.Take()
	if assert.Len(t, lines, 2) {
		assert.Contains(t, lines[0].String(), "result=unknown err=")
		assert.NotEqual(t, lines[0].RequestID(), lines[1].RequestID(), "each attempt has its own request id")
	}
	for _, event := range h.Events() {
		assert.NotContains(t, event, "GroupShrunk")
	}
}

func TestDeletionIsAudited(t *testing.T) {
	h, log := audited(t, controllertest.Deleting(newObject()))
	h.Expect(deleteGroup, writeStatus)
	log.Expect(t, "Audit: delete group shard=a group=workers from=3 to=0 generation=1 writer=written: shards reason=shard-group-deleted result=accepted requestID=ID")
	h.setGroup(nil)
	h.Expect(deleteGroup, release)
	log.Expect(t)
	h.ExpectEvents("Normal DeletingGroup from 3 to 0 instances: the shard deletes the group; requestID ID; written: shards",
		`Normal GroupDeleted shard "a" has deleted group "workers"`)
}
