// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// A shard that is not configured cannot confirm that an instance is deleted.
func TestAnInstanceOnALostShardIsGivenUpByAnAnnotation(t *testing.T) {
	annotate := func(h *harness, value string) {
		h.change(func(m *v1beta1.NstanceMachine) {
			m.Annotations[v1beta1.AnnotationAbandonedShard] = value
		})
	}
	const blocked = `False Deleting: the shard has not confirmed that the instance is deleted: shard "a" is not configured; ` +
		"if the shard is lost, the annotation nstance.dev/abandoned-shard=a/"
	t.Run("that is known", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1")))
		delete(h.Fake.ByID, "a")
		h.Expect(applyStatusM)
		h.expectReady(blocked + "i-1 gives up the instance")
		h.Events()
		for _, value := range []string{"", "a", "a/i-2", "b/i-1", "a/unknown", "true"} {
			annotate(h, value)
			h.Expect()
		}
		annotate(h, "a/i-1")
		h.Expect(patchM)
		assert.Nil(t, h.nstanceMachine("m"))
		assert.Equal(t, []string{`Warning ShardAbandoned the instance on shard "a" was given up: a/i-1`}, h.Events())
	})
	t.Run("whose create request had no reply", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(withShard(newNstanceMachine("m"))))
		delete(h.Fake.ByID, "a")
		h.Expect(applyStatusM)
		h.expectReady(blocked + "unknown gives up the instance")
		annotate(h, "a/unknown")
		h.Expect(patchM)
		assert.Nil(t, h.nstanceMachine("m"))
	})
	t.Run("but not while the shard is configured", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1")))
		h.Fake.ByID["a"] = shardtest.NewShard()
		h.shardA().Reachable = false
		annotate(h, "a/i-1")
		h.Expect(applyStatusM)
		require.NotNil(t, h.nstanceMachine("m"))
	})
	t.Run("but not before it is deleted", func(t *testing.T) {
		h := newHarness(t, newShards("a"), running(newNstanceMachine("m"), "i-1"))
		delete(h.Fake.ByID, "a")
		annotate(h, "a/i-1")
		h.Expect()
		require.NotNil(t, h.nstanceMachine("m"))
	})
}
