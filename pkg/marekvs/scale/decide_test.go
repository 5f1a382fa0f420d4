// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/testing/tier"
)

func demo() *Autoscaler {
	return &Autoscaler{
		MinNodes: 3, MaxNodes: 8, ReplicationFactor: 2, OpsPerNode: 5000,
		UpCooldown: time.Minute, DownStabilization: 5 * time.Minute,
	}
}

// steady returns a load that was constant for the whole window.
func steady(rate float64, sinceScale time.Duration) *Load {
	return &Load{Rate: &rate, Complete: true, Peak: &rate, SinceScale: &sinceScale}
}

// The example of the first description: 22,000 commands per second at 5,000 per node.
func TestWorkedExample(t *testing.T) {
	a := demo()
	assert.Equal(t, int32(5), a.Target(3, steady(22_000, time.Hour)), "3 to 5 in one step")
	assert.Equal(t, int32(5), a.Target(5, steady(6_000, 4*time.Minute)), "in the window")
	assert.Equal(t, int32(4), a.Target(5, steady(6_000, 5*time.Minute)), "6000/4 is less than 3000")
	assert.Equal(t, int32(4), a.Target(4, steady(6_000, time.Minute)))
	assert.Equal(t, int32(3), a.Target(4, steady(6_000, 5*time.Minute)), "6000/3 is less than 3000")
	assert.Equal(t, int32(3), a.Target(3, steady(6_000, time.Hour)), "the floor")
}

func TestTarget(t *testing.T) {
	never := func(load *Load) *Load { load.SinceScale = nil; return load }
	for name, c := range map[string]struct {
		change  func(*Autoscaler)
		current int32
		load    *Load
		want    int32
	}{
		"in the cooldown":                {nil, 3, steady(22_000, 59*time.Second), 3},
		"after the cooldown":             {nil, 3, steady(22_000, time.Minute), 5},
		"never scaled":                   {nil, 3, never(steady(22_000, 0)), 5},
		"at most maxNodes":               {nil, 3, steady(1e12, time.Hour), 8},
		"an endless rate":                {nil, 3, steady(math.Inf(1), time.Hour), 8},
		"exactly the target":             {nil, 4, steady(20_000, time.Hour), 4},
		"just above the target":          {nil, 4, steady(20_001, time.Hour), 5},
		"exactly the hysteresis":         {nil, 5, steady(12_000, time.Hour), 5},
		"just below the hysteresis":      {nil, 5, steady(11_999, time.Hour), 4},
		"no signal":                      {nil, 5, &Load{}, 5},
		"a lower bound is enough to add": {nil, 3, &Load{Rate: ptr.To(22_000.0)}, 5},
		"a lower bound does not remove":  {nil, 5, &Load{Rate: ptr.To(1.0), Peak: ptr.To(1.0)}, 5},
		"a high rate in the window":      {nil, 5, &Load{Rate: ptr.To(1.0), Complete: true, Peak: ptr.To(12_000.0)}, 5},
		"the window is not over":         {nil, 5, &Load{Rate: ptr.To(1.0), Complete: true}, 5},
		"below the floor":                {func(a *Autoscaler) { a.ReplicationFactor = 4 }, 3, &Load{}, 5},
		"above the ceiling":              {nil, 12, &Load{}, 8},
		"a floor above the ceiling":      {func(a *Autoscaler) { a.MaxNodes, a.ReplicationFactor = 3, 4 }, 3, &Load{}, 5},
		"a volume is too full": {func(a *Autoscaler) { a.DiskPercent = 70 }, 3,
			&Load{DiskUsed: ptr.To(70.0), CopiesComplete: true}, 4},
		"a volume is too full while copies move": {func(a *Autoscaler) { a.DiskPercent = 70 }, 3,
			&Load{DiskUsed: ptr.To(90.0)}, 3},
		"the last node has not helped": {func(a *Autoscaler) { a.DiskPercent = 70 }, 3,
			&Load{DiskUsed: ptr.To(90.0), DiskAtGrowth: ptr.To(90.5), CopiesComplete: true}, 3},
		"the last node has helped": {func(a *Autoscaler) { a.DiskPercent = 70 }, 3,
			&Load{DiskUsed: ptr.To(80.0), DiskAtGrowth: ptr.To(81.0), CopiesComplete: true}, 4},
		"a volume is not too full": {func(a *Autoscaler) { a.DiskPercent = 70 }, 3,
			&Load{DiskUsed: ptr.To(69.9), CopiesComplete: true}, 3},
		"volumes do not count": {nil, 3, &Load{DiskUsed: ptr.To(99.0), CopiesComplete: true}, 3},
		"a volume would be too full": {func(a *Autoscaler) { a.DiskPercent = 70 }, 5,
			&Load{Rate: ptr.To(1.0), Complete: true, Peak: ptr.To(1.0), DiskUsed: ptr.To(60.0), DiskAfterRemoval: ptr.To(75.0)}, 5},
	} {
		a := demo()
		if c.change != nil {
			c.change(a)
		}
		assert.Equal(t, c.want, a.Target(c.current, c.load), name)
	}
}

// The target is within the limits. It is at most one less than the size within the limits,
// and not less while the load is incomplete.
func TestTargetIsWithinLimits(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(1, 10)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { testTargetIsWithinLimits(t, rand.New(rand.NewPCG(seed, 4))) })
	}
}

func testTargetIsWithinLimits(t *testing.T, random *rand.Rand) {
	for range 20_000 {
		a := &Autoscaler{
			MinNodes: 1 + random.Int32N(10), MaxNodes: 1 + random.Int32N(10), ReplicationFactor: 1 + random.Int32N(4),
			OpsPerNode: 1 + random.Int64N(10_000), UpCooldown: time.Minute, DownStabilization: time.Minute,
			DiskPercent: random.Int32N(96),
		}
		current := 1 + random.Int32N(15)
		load := steady(random.Float64()*100_000, time.Duration(random.IntN(120))*time.Second)
		load.Complete = random.IntN(2) == 0
		load.DiskUsed, load.CopiesComplete = ptr.To(random.Float64()*100), random.IntN(2) == 0
		target := a.Target(current, load)
		if target != a.Clamp(target) {
			t.Fatalf("%+v: target %d is not within the limits", a, target)
		}
		if within := a.Clamp(current); target < within-1 || target < within && !load.Complete {
			t.Fatalf("%+v, %+v: target %d of %d nodes", a, load, target, current)
		}
	}
}

// Without autoscale the last stabilization applies until the size is reached.
func TestRemovedAutoscale(t *testing.T) {
	wanted := &Wanted{Nodes: 3, ReplicationFactor: 2, Stabilization: 5 * time.Minute}
	decision := Decide(wanted, healthy(8), steady(1, 4*time.Minute), nil)
	assert.Equal(t, int32(3), decision.Target)
	assert.Equal(t, int32(8), decision.Step.Replicas)
	assert.Equal(t, "Stabilizing", decision.Step.Blocked.Reason)
	assert.Equal(t, int32(7), Decide(wanted, healthy(8), steady(1, 5*time.Minute), nil).Step.Replicas)
	unready := healthy(8)
	unready.Pods[0].Ready = false
	assert.Equal(t, "NotAllReady", Decide(wanted, unready, steady(1, time.Hour), nil).Step.Blocked.Reason)
}

func TestSizes(t *testing.T) {
	assert.Equal(t, int32(3), FixedTarget(1, 2))
	assert.Equal(t, int32(7), FixedTarget(7, 2))
	assert.Equal(t, int32(8), Initial(3, []Volume{{Ordinal: 7}, {Ordinal: 0}}))
	assert.Equal(t, int32(3), Initial(3, nil))
	assert.Equal(t, int32(1000), Initial(3, []Volume{{Ordinal: 999}, {Ordinal: 2_000_000}}), "no cluster had the second volume")
}

// The initial sizes with and without autoscaling, and of a cluster that is created again.
func TestCreate(t *testing.T) {
	autoscaler := &Autoscaler{MinNodes: 1, MaxNodes: 8, ReplicationFactor: 2, OpsPerNode: 1}
	for name, c := range map[string]struct {
		wanted           Wanted
		volumes          []Volume
		replicas, target int32
	}{
		"fixed":             {Wanted{Nodes: 5, ReplicationFactor: 2}, nil, 5, 5},
		"below the floor":   {Wanted{Nodes: 1, ReplicationFactor: 3}, nil, 4, 4},
		"nodes begin":       {Wanted{Nodes: 5, ReplicationFactor: 2, Autoscaler: autoscaler}, nil, 5, 5},
		"within the limits": {Wanted{Nodes: 20, ReplicationFactor: 2, Autoscaler: autoscaler}, nil, 8, 8},
		"volumes exist":     {Wanted{Nodes: 3, ReplicationFactor: 2, Autoscaler: autoscaler}, []Volume{{Ordinal: 7}}, 8, 3},
	} {
		replicas, target := Create(&c.wanted, c.volumes)
		assert.Equal(t, c.replicas, replicas, name)
		assert.Equal(t, c.target, target, name)
	}
}

// A full volume adds one node, however long it stays full: a node that does not help is the last.
func TestAFullVolumeDoesNotAddNodesForEver(t *testing.T) {
	wanted := &Wanted{Nodes: 3, ReplicationFactor: 2, Autoscaler: demo()}
	wanted.Autoscaler.DiskPercent = 70
	load := steady(100, time.Hour)
	load.DiskUsed, load.DiskAfterRemoval = ptr.To(90.0), ptr.To(95.0)
	decide := func(nodes int32) Decision {
		decision := Decide(wanted, healthy(nodes), load, nil)
		load.DiskAtGrowth = decision.Disk.AtGrowth
		return decision
	}
	first := decide(3)
	assert.Equal(t, int32(4), first.Step.Replicas)
	assert.Equal(t, Disk{Full: true, AtGrowth: ptr.To(90.0)}, first.Disk)
	for range 100 {
		next := decide(4)
		assert.Equal(t, int32(4), next.Step.Replicas)
		assert.Equal(t, "DiskFull", next.Disk.Stopped.Reason)
	}
	load.DiskUsed = ptr.To(85.0)
	assert.Equal(t, int32(5), decide(4).Step.Replicas, "the node has helped")
	load.DiskUsed = nil
	assert.Equal(t, Disk{AtGrowth: ptr.To(85.0)}, decide(5).Disk, "it is not forgotten while the volumes are unknown")
	load.DiskUsed = ptr.To(60.0)
	assert.Equal(t, Disk{}, decide(5).Disk)
	load.DiskUsed = ptr.To(90.0)
	assert.Equal(t, int32(6), decide(5).Step.Replicas, "full again")
	load.DiskAtGrowth = nil
	full := decide(8)
	assert.Equal(t, int32(8), full.Step.Replicas)
	assert.Contains(t, full.Disk.Stopped.Message, "maxNodes is 8")
}
