// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// lostHarness is a shard group in deletion whose shard was removed from the
// configuration while 3 instances ran.
func lostHarness(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.Expect(writeStatus)
	delete(h.Fake.ByID, "a")
	h.change(func(g *v1beta1.NstanceShardGroup) { controllertest.Deleting(g) })
	h.Expect(writeStatus)
	h.Expect()
	return h
}

// giveUp sets the annotation with which an administrator gives up instances.
func (h *harness) giveUp(value string) {
	h.T.Helper()
	controllertest.Change(h.API, "workers--a", func(g *v1beta1.NstanceShardGroup) {
		g.Annotations = map[string]string{v1beta1.AnnotationAbandonedShard: value}
	})
}

func TestALostShardIsGivenUpByAnAnnotation(t *testing.T) {
	h := lostHarness(t)
	want := `Ready=False Deleting: the shard has not confirmed the deletion of the group: shard "a" is not configured; ` +
		"if the shard is lost, the annotation nstance.dev/abandoned-shard=a/3 gives up the 3 instances"
	if got := h.conditions(); !slices.Contains(got, want) {
		t.Fatalf("the conditions are %q, want %q", got, want)
	}
	h.Events()
	for _, value := range []string{"", "a", "a/2", "a/4", "b/3", "a/unknown", "true"} {
		h.giveUp(value)
		h.Expect()
		require.NotNil(t, h.object(), "the annotation %q", value)
	}
	h.giveUp("a/3")
	h.Expect(release)
	assert.Nil(t, h.object())
	assert.Equal(t, []string{`Warning ShardAbandoned the instances on shard "a" were given up: a/3`}, h.Events())
}

// The annotation has an effect only when no server can confirm the deletion.
func TestTheAnnotationForALostShardIsIgnored(t *testing.T) {
	t.Run("while the shard is configured", func(t *testing.T) {
		h := lostHarness(t)
		h.Fake.ByID["a"] = shardtest.NewShard()
		h.a().Reachable, h.a().Lost = false, lost
		h.setGroup(reported())
		h.giveUp("a/3")
		h.Expect(writeStatus)
		h.Expect()
		require.NotNil(t, h.object())

		h.a().Reachable, h.a().Lost = true, nil
		h.Expect(deleteGroup, writeStatus)
		h.setGroup(changed(reported(), func(g *shard.Group) { g.Deleting = true }))
		h.Expect(writeStatus)
		require.NotNil(t, h.object())
	})
	t.Run("before the shard group is deleted", func(t *testing.T) {
		h := newHarness(t, newObject())
		h.setGroup(reported())
		h.Expect(writeStatus)
		delete(h.Fake.ByID, "a")
		h.giveUp("a/3")
		h.Expect(writeStatus)
		h.Expect()
		require.NotNil(t, h.object())
	})
	t.Run("during a pause", func(t *testing.T) {
		h := lostHarness(t)
		h.paused = "Cluster dev has spec.paused"
		h.giveUp("a/3")
		h.Expect(writeStatus)
		require.NotNil(t, h.object())
		h.paused = ""
		h.Expect(release)
	})
}

// A restore without the status has no number.
func TestALostShardWithoutAStatusIsGivenUpByAnAnnotation(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	delete(h.Fake.ByID, "a")
	h.Expect(writeStatus)
	h.giveUp("a/0")
	h.Expect()
	h.giveUp("a/unknown")
	h.Expect(release)
}
