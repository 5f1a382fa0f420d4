// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// scalingGroup is the group without one of its instances; the server lists i-3 as pending.
func scalingGroup() *shard.Group {
	return changed(reported(), func(g *shard.Group) {
		g.ActualSize, g.ProviderIDs = 2, []string{"i-1", "i-2"}
		g.ListsInstances = true
		g.Instances = []shard.Instance{{ID: "i-1"}, {ID: "i-2"}, {ID: "i-3", State: shard.InstancePending}}
	})
}

const outOfCapacity = "Ready=False ProviderError: out of capacity"

func TestErrorsOfInstancesOfOthersAreIgnored(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(scalingGroup())
	h.Expect(writeStatus)
	// The machine controller reports the errors of on-demand instances.
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "on-demand-1", Message: "quota exceeded"})
	h.Expect()
	assert.Empty(t, h.Events())
	assert.Contains(t, h.conditions(), "Ready=False Scaling: 2 of 3 instances are running")

	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "i-3", Message: "out of capacity"})
	h.Expect(writeStatus)
	assert.Contains(t, h.conditions(), outOfCapacity)
	h.ExpectEvents("Warning ProviderError out of capacity")

	// An error of another instance does not replace it.
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "on-demand-1", Message: "quota exceeded"})
	h.Expect()
	assert.Empty(t, h.Events())
	assert.Contains(t, h.conditions(), outOfCapacity)
}

// A server reports an error of a new instance while its list with the instance is on the way.
func TestErrorOfAnInstanceThatIsListedLater(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(changed(scalingGroup(), func(g *shard.Group) {
		g.Instances = slices.DeleteFunc(g.Instances, func(i shard.Instance) bool { return i.ID == "i-3" })
	}))
	h.Expect(writeStatus)
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "i-3", Message: "out of capacity"})
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "on-demand-1", Message: "quota exceeded"})
	h.Expect()
	assert.Empty(t, h.Events())

	h.setGroup(scalingGroup())
	h.Expect(writeStatus)
	assert.Contains(t, h.conditions(), outOfCapacity)
	h.ExpectEvents("Warning ProviderError out of capacity")

	// The server has given up i-3 and creates another one: the error still applies.
	h.setGroup(changed(scalingGroup(), func(g *shard.Group) { g.Instances[2].ID = "i-4" }))
	h.Expect()
	assert.Contains(t, h.conditions(), outOfCapacity)
	assert.Empty(t, h.Events())
}

func TestErrorsOfOtherInstancesAreLimited(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(scalingGroup())
	h.Expect(writeStatus)
	for i := range 2 * maxUnlistedErrors {
		h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: fmt.Sprintf("on-demand-%d", i), Message: "quota exceeded"})
	}
	// The error of an instance that fails repeatedly does not displace those of others.
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "i-4", Message: "out of capacity"})
	for range 2 * maxUnlistedErrors {
		h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "on-demand-1", Message: "quota exceeded"})
	}
	assert.Len(t, h.controller.failures[controllertest.Key("workers--a")].unlisted, maxUnlistedErrors)
	h.setGroup(changed(scalingGroup(), func(g *shard.Group) { g.Instances[2].ID = "i-4" }))
	h.Expect(writeStatus)
	assert.Contains(t, h.conditions(), outOfCapacity)
}

// Without a list of instances nothing distinguishes those of the group.
func TestErrorOfAnInstanceOfAServerThatListsNone(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(changed(reported(), func(g *shard.Group) { g.ActualSize, g.ProviderIDs = 2, []string{"i-1", "i-2"} }))
	h.Expect(writeStatus)
	h.Fake.NotifyError("a", shard.ErrorEvent{Group: "workers", InstanceID: "i-3", Message: "out of capacity"})
	h.Expect(writeStatus)
	assert.Contains(t, h.conditions(), outOfCapacity)
}
