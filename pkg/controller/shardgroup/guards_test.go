// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/shard"
)

// A group that is being deleted on its shard, although it is as the object wants it, is
// created again.
func TestPlanOfAGroupThatItsShardDeletes(t *testing.T) {
	assert.Equal(t, nothing, plan(newObject(), connected(reported()), nil, then.Time))
	deleting := changed(reported(), func(g *shard.Group) { g.Deleting = true })
	assert.Equal(t, upsert, plan(newObject(), connected(deleting), nil, then.Time))
}
