// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/base/audit/audittest"
)

// TestDeletionOfAnInstanceIsAudited: the calls that query whether it is complete have no
// line.
func TestDeletionOfAnInstanceIsAudited(t *testing.T) {
	h, log := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1"))), audittest.NewLog()
	h.Ctx = log.Context(h.Ctx)
	h.Expect(deleteOnA, applyStatusM)
	lines := log.Take()
	if assert.Len(t, lines, 1) {
		assert.Regexp(t, "^Audit: delete instance shard=a group=workers instance=i-1 .*to=deleting .*writer=NstanceMachine m is deleted"+
			" reason=requested result=accepted requestID=ID$", lines[0].String())
	}
	assert.Contains(t, h.Events(), `Normal DeletingInstance shard "a" deletes instance i-1; requestID ID; NstanceMachine m is deleted`)
	h.Advance(10 * time.Second)
	h.Expect(deleteOnA)
	h.Advance(10 * time.Second)
	h.shardA().Deleted = true
	h.Expect(deleteOnA, patchM)
	log.Expect(t)
	for _, event := range h.Events() {
		assert.NotContains(t, event, "DeletingInstance")
	}
}
