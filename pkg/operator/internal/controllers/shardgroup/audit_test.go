// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
