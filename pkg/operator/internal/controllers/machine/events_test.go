// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/operator/shard"
)

// A scale-down and a rotation are not problems.
func TestADeletionThatWasWantedIsNoWarning(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*harness)
		want   string
	}{
		"scale-down":   {noticed("scale-down"), "Normal InstanceDeleted the shard is deleting the instance: scale-down"},
		"requested":    {noticed("requested"), "Normal InstanceDeleted the shard is deleting the instance: requested"},
		"config-drift": {noticed("config-drift"), "Normal InstanceDeleted the shard is deleting the instance: config-drift"},
		"expired":      {noticed("expired"), "Normal InstanceDeleted the shard is deleting the instance: expired"},
		"unhealthy":    {noticed("unhealthy"), "Warning ServerDeleted the shard is deleting the instance: unhealthy"},
		"unregistered": {noticed("unregistered"), "Warning ServerDeleted the shard is deleting the instance: unregistered"},
		"spot":         {noticed("spot"), "Warning ServerDeleted the shard is deleting the instance: spot"},
		"unhealthy, and selected by the pool": {func(h *harness) {
			h.resize(0, "m")
			noticed("unhealthy")(h)
		}, "Warning ServerDeleted the shard is deleting the instance: unhealthy"},
		"only listed":                         {func(*harness) {}, "Warning ServerDeleted instance m is terminating"},
		"only listed, another is selected":    {func(h *harness) { h.resize(0, "other") }, "Warning ServerDeleted instance m is terminating"},
		"only listed, selected by the pool":   {func(h *harness) { h.resize(0, "m") }, "Normal InstanceDeleted instance m is terminating"},
		"only listed, selected on the server": {func(h *harness) { h.changeGroup(func(g *shard.Group) { g.RemoveFirst = []string{"m"} }) }, "Normal InstanceDeleted instance m is terminating"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a"), runningPoolMember("m"))
			h.addPool(1, 1, 0)
			h.list(listed(shard.InstanceTerminating))
			test.change(h)
			h.Expect(applyStatusM)
			assert.Equal(t, []string{test.want}, h.Events())
		})
	}
}

// noticed has shard a report that it is deleting instance m.
func noticed(reason string) func(*harness) {
	return func(h *harness) {
		h.shardA().Notices["m"] = shard.DeletionNotice{InstanceID: "m", State: shard.Deleting, Reason: reason}
		h.shardA().Groups["workers"] = shard.Group{Key: "workers", ETag: "1", ListsInstances: true,
			Instances: []shard.Instance{listed(shard.InstanceTerminating)}}
	}
}
