// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"math"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	"sigs.k8s.io/randfill"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/settingstest"
)

// Two clients without revisions that revert each other's changes of a group must not do so as
// fast as they can: each change creates or terminates instances.
func TestRepeatedDriftIsCorrectedMoreAndMoreRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarnessOf(t, func(h *harness) { h.Clock = clock.RealClock{} }, newObject())
		start := time.Now()
		var sent []time.Duration
		h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) {
			sent = append(sent, time.Since(start))
			// The other client writes after the reply is in the cache.
			time.AfterFunc(10*time.Millisecond, func() {
				h.Fake.SetGroup("a", *changed(reported(), func(g *shard.Group) { g.Size = 1 }))
				h.controller.groupChanged("a", "workers")
			})
			return accept(config)
		}
		ctx, cancel := context.WithTimeout(h.Ctx, time.Hour)
		defer cancel()
		h.controller.shardGroupChanged(nil, newObject())
		go h.controller.Run(ctx)
		for ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
			// The controller waits until the cache has its write.
			h.Show()
		}
		synctest.Wait()

		t.Logf("sent %d times within an hour", len(sent))
		require.Greater(t, len(sent), 60)
		assert.Less(t, len(sent), 75)
		assert.Less(t, sent[1], 2*time.Second, "the first correction is made at once")
		for i := 10; i < len(sent); i++ {
			assert.GreaterOrEqual(t, sent[i]-sent[i-1], lastCorrectionDelay)
		}
		if events := h.Events(); assert.NotEmpty(t, events) {
			assert.Contains(t, events[0], `Warning DriftRepeated the group on shard "a" was changed by another writer and corrected 3 times since `)
		}
	})
}

func TestChangeOfTheObjectIsNoCorrection(t *testing.T) {
	h := newHarness(t, newObject())
	h.Expect(upsert3, writeStatus)
	drift := func() { h.setGroup(changed(reported(), func(g *shard.Group) { g.Size = 1 })) }
	drift()
	h.Expect(upsert3, writeStatus)
	drift()
	assert.Equal(t, time.Second, h.Expect(writeStatus), "until the second correction")
	h.change(func(object *v1beta1.NstanceShardGroup) { object.Spec.Size = 4 })
	h.Expect("upsert workers on a with size 4", writeStatus)
	drift()
	h.Expect("upsert workers on a with size 4")
	h.ExpectSeries(`nstance_operator_drift_corrections_total{shard="a"} 2`)
}

func TestEachConfiguredShardHasACount(t *testing.T) {
	h := newHarness(t)
	h.ExpectSeries()
	h.Fake.NotifyShard("a")
	h.ExpectSeries(`nstance_operator_drift_corrections_total{shard="a"} 0`)
	h.Fake.Update(func() { delete(h.Fake.ByID, "a") })
	h.Fake.NotifyShard("a")
	h.ExpectSeries()
}

func TestRareDriftIsCorrectedAtOnce(t *testing.T) {
	h := newHarness(t, newObject())
	h.Expect(upsert3, writeStatus)
	for range 5 {
		h.Advance(driftForgotten)
		h.setGroup(changed(reported(), func(g *shard.Group) { g.Size = 1 }))
		did, _, err := h.Sync()
		require.NoError(t, err)
		assert.Contains(t, did, upsert3)
	}
	h.ExpectEvents()
}

// A setting that is forgotten anywhere between the spec and the server, or between the server
// and the status, would silently never be set or never be corrected.
func TestEverySettingIsSentComparedAndReported(t *testing.T) {
	var spec v1beta1.NstanceShardGroupSpec
	settingstest.Fill(&spec.GroupSettings, func(id *v1beta1.Identifier, _ randfill.Continue) { *id = "private" })
	settingstest.Fill(&spec.Candidates)
	config := wanted(&v1beta1.NstanceShardGroup{Spec: spec}, nil)
	group := shard.Group{GroupSettings: config.GroupSettings, Declared: &config.GroupSettings, KnownSettings: math.MaxInt32}
	if !inOrder(&spec, &group) {
		t.Fatal("a group with the wanted settings is not in order")
	}

	settings := reflect.TypeFor[v1beta1.GroupSettings]()
	for i := range settings.NumField() {
		name := settings.Field(i).Name
		if sent := reflect.ValueOf(config.GroupSettings).FieldByName(name); !sent.IsValid() || sent.IsZero() {
			t.Errorf("%s is not sent", name)
			continue
		}
		without := func(from shard.GroupSettings) shard.GroupSettings {
			reflect.ValueOf(&from).Elem().FieldByName(name).SetZero()
			return from
		}
		drifted := group
		drifted.GroupSettings = without(group.GroupSettings)
		if inOrder(&spec, &drifted) {
			t.Errorf("a group is in order although %s is not in effect", name)
		}
		removed := spec
		reflect.ValueOf(&removed.GroupSettings).Elem().Field(i).SetZero()
		if inOrder(&removed, &group) {
			t.Errorf("a group is in order although %s was removed from spec", name)
		}
		older := group
		older.Declared = nil
		if !inOrder(&removed, &older) {
			t.Errorf("%s was removed from spec, and a server that cannot remove it is called again", name)
		}
		if reported := reflect.ValueOf(*controllers.ReportedConfig(group.GroupSettings)).FieldByName(name); !reported.IsValid() || reported.IsZero() {
			t.Errorf("%s is not reported", name)
		}
		if applied := reflect.ValueOf(*controller.ApplyConfiguration[applyv1beta1.GroupConfigApplyConfiguration](controllers.ReportedConfig(group.GroupSettings))).FieldByName(name); !applied.IsValid() || applied.IsZero() {
			t.Errorf("%s is not written to the status", name)
		}
	}

	// The candidates are not in GroupSettings, because a shard group has shares of the pool's.
	fields := reflect.TypeFor[v1beta1.ShardCandidate]()
	for i := range fields.NumField() {
		name, other := fields.Field(i).Name, spec
		other.Candidates = slices.Clone(spec.Candidates)
		reflect.ValueOf(&other.Candidates[0]).Elem().Field(i).SetZero()
		if inOrder(&other, &group) {
			t.Errorf("a group is in order although %s of a candidate is another", name)
		}
		older := group
		older.Declared = nil
		if inOrder(&other, &older) {
			t.Errorf("a group is in order on a server without declared settings although %s of a candidate is another", name)
		}
	}
	removed := spec
	removed.Candidates = nil
	if inOrder(&removed, &group) {
		t.Error("a group is in order although its candidates were removed from spec")
	}
	drifted := group
	drifted.Candidates = nil
	if inOrder(&spec, &drifted) {
		t.Error("a group is in order although its candidates are not in effect")
	}
}

// A server that does not know candidates gets none, is not called for them at each sync, and the
// condition names them.
func TestAServerWithoutCandidates(t *testing.T) {
	spec := newObject().Spec
	spec.Candidates = []v1beta1.ShardCandidate{{Name: "spot", Market: v1beta1.MarketSpot}}
	spec.ReturnAfterSeconds = 600
	older := changed(reported(), func(g *shard.Group) { g.KnownSettings = 1023 })
	assert.Empty(t, wanted(&v1beta1.NstanceShardGroup{Spec: spec}, older).Candidates)
	assert.True(t, inOrder(&spec, older))
	assert.Contains(t, unsupported(&spec, older), `the server of shard "a" does not know candidates, returnAfterSeconds`)
	newer := changed(reported(), func(g *shard.Group) { g.KnownSettings = 1025 })
	assert.Len(t, wanted(&v1beta1.NstanceShardGroup{Spec: spec}, newer).Candidates, 1)
	assert.False(t, inOrder(&spec, newer))
	assert.Empty(t, unsupported(&spec, newer))
}

// lists makes a group report its instances.
func lists(group *shard.Group) *shard.Group {
	group.ListsInstances = true
	for _, id := range []string{"knd1", "knd2", "knd3"} {
		group.Instances = append(group.Instances, shard.Instance{ID: id, State: shard.InstanceRunning, ProviderID: "i-" + id[3:]})
	}
	return group
}

// Size and deletion candidates are sent in one call. Otherwise the shard could delete another
// instance instead of a candidate.
func TestSyncSendsCandidatesWithTheSize(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(lists(reported()))
	h.Expect(writeStatus)

	var sent []shard.GroupConfig
	h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) {
		sent = append(sent, config)
		return accept(config)
	}
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size, g.Spec.RemoveFirst = 2, []string{"knd2"} })
	h.Expect("upsert workers on a with size 2")
	if len(sent) != 1 || sent[0].Size != 2 || !slices.Equal(sent[0].RemoveFirst, []string{"knd2"}) {
		t.Errorf("sent %+v", sent)
	}
	h.Expect()

	// The candidates are sent again to a server that lost them, and removed from one that still has them.
	h.setGroup(changed(h.group(), func(g *shard.Group) { g.RemoveFirst = nil }))
	h.Expect("upsert workers on a with size 2")
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.RemoveFirst = nil })
	h.Expect("upsert workers on a with size 2")
	if got := sent[len(sent)-1].RemoveFirst; len(got) > 0 {
		t.Errorf("still sends %q", got)
	}
}

// A server that does not support deletion candidates cannot confirm them.
func TestSyncWithAServerThatIgnoresCandidates(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.Expect(writeStatus)
	h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) {
		group, err := accept(config)
		group.RemoveFirst = nil
		return group, err
	}
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size, g.Spec.RemoveFirst = 2, []string{"knd2"} })
	h.Expect("upsert workers on a with size 2")
	h.Expect()
	h.Advance(reportDelay)
	h.Expect(writeStatus)
	h.Advance(time.Hour)
	h.Expect()
}

// Changes that matter only to the Machines of a pool cause no log message and no event.
func TestSyncIgnoresChangesOfInstances(t *testing.T) {
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
		"the server tells what a Node is like": func(g *shard.Group) { g.Shape = &shard.NodeShape{Architecture: "arm64"} },
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

// An edited size would terminate instances before the pool reverts it.
func TestAnEditedSizeIsNotSent(t *testing.T) {
	h := newHarness(t, newObject())
	h.Fake.OnUpsert = func(_, _ string, config shard.GroupConfig) (shard.Group, error) { return accept(config) }
	h.setGroup(reported())
	h.Expect(writeStatus)
	controllertest.ChangeAs(h.API, "kubectl-patch", "workers--a", func(object *v1beta1.NstanceShardGroup) {
		object.Generation++
		object.Spec.Size = 0
	})
	did, requeue, err := h.Sync()
	require.NoError(t, err)
	assert.Empty(t, did)
	assert.Equal(t, editedRetry, requeue)

	// The pool reverts it, and is scaled down afterwards.
	h.change(func(o *v1beta1.NstanceShardGroup) { o.Spec.Size = 3 })
	_, _, err = h.Sync()
	require.NoError(t, err)
	h.change(func(o *v1beta1.NstanceShardGroup) { o.Spec.Size = 2 })
	did, _, err = h.Sync()
	require.NoError(t, err)
	assert.Contains(t, did[0], "with size 2")
}

// A smaller size from a cache that is older than the shard group is not sent.
func TestAStaleSizeIsNotSent(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(changed(reported(), func(g *shard.Group) { g.Size = 9 }))
	h.Show()
	h.change(func(o *v1beta1.NstanceShardGroup) { o.Spec.Size = 9 })
	did, requeue, err := h.SyncStale()
	require.NoError(t, err)
	assert.Empty(t, did)
	assert.Equal(t, editedRetry, requeue)
}
