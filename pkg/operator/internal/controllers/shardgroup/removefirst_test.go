// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"testing"
	"time"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// lists makes a shard report the instances of a group.
func lists(group *shard.Group) *shard.Group {
	group.ListsInstances = true
	for _, id := range []string{"knd1", "knd2", "knd3"} {
		group.Instances = append(group.Instances, shard.Instance{ID: id, State: shard.InstanceRunning, ProviderID: "i-" + id[3:]})
	}
	return group
}

// Size and victims go to the shard in one call, or a victim might stay in place
// of another instance.
func TestSyncSendsVictimsWithTheSize(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(lists(reported()))
	h.Expect(writeStatus)

	var sent []shard.GroupConfig
	h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) {
		sent = append(sent, config)
		return accept(config)
	}
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size, g.Spec.RemoveFirst = 2, []string{"knd2"} })
	h.Expect("upsert workers on a with size 2", writeStatus)
	if len(sent) != 1 || sent[0].Size != 2 || !slices.Equal(sent[0].RemoveFirst, []string{"knd2"}) {
		t.Errorf("sent %+v", sent)
	}
	h.Expect()

	// The candidates are sent again to a server that lost them, and removed from one that still has them.
	h.setGroup(changed(h.group(), func(g *shard.Group) { g.RemoveFirst = nil }))
	h.Expect("upsert workers on a with size 2")
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.RemoveFirst = nil })
	h.Expect("upsert workers on a with size 2", writeStatus)
	if got := sent[len(sent)-1].RemoveFirst; len(got) > 0 {
		t.Errorf("still sends %q", got)
	}
}

// A server that knows of no victims cannot confirm them.
func TestSyncWithAServerThatKnowsNoVictims(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.Expect(writeStatus)
	h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) {
		group, err := accept(config)
		group.RemoveFirst = nil
		return group, err
	}
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size, g.Spec.RemoveFirst = 2, []string{"knd2"} })
	h.Expect("upsert workers on a with size 2", writeStatus)
	h.Expect()
	h.Advance(time.Hour)
	h.Expect()
}

// What only the Machines of a pool need is not worth a word here.
func TestSyncIsQuietAboutInstances(t *testing.T) {
	for name, change := range map[string]func(*shard.Group){
		"one is pending": func(g *shard.Group) {
			g.Instances = append(slices.Clone(g.Instances), shard.Instance{ID: "knd4", State: shard.InstancePending})
		},
		"one is ending": func(g *shard.Group) {
			g.Instances = slices.Clone(g.Instances)
			g.Instances[0].State = shard.InstanceTerminating
		},
		"one that did not run is gone":         func(g *shard.Group) { g.Instances = g.Instances[:2] },
		"the server no longer tells":           func(g *shard.Group) { g.ListsInstances, g.Instances = false, nil },
		"the server tells what a Node is like": func(g *shard.Group) { g.Node = &shard.NodeShape{Architecture: "arm64"} },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newObject())
			h.setGroup(lists(reported()))
			h.Expect(writeStatus)
			h.Advance(time.Minute)
			h.setGroup(changed(lists(reported()), change))
			h.Expect()
		})
	}
}
