// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/randfill"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/base/poolplan"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/settingstest"
)

// A pool that is imported and lacks a setting would remove it from the servers, which may
// replace every instance.
func TestEverySettingIsImported(t *testing.T) {
	var spec v1beta1.GroupSettings
	settingstest.Fill(&spec, func(id *v1beta1.Identifier, _ randfill.Continue) { *id = "private" },
		func(propagation *v1beta1.TaintPropagation, _ randfill.Continue) {
			*propagation = v1beta1.TaintOnInitialization
		})
	assert.Equal(t, spec, SpecSettings(ShardSettings(spec)))
}

// The same for the candidates, which are no part of the struct.
func TestEveryFieldOfACandidateIsSentAndImported(t *testing.T) {
	var spec v1beta1.NstanceShardGroupSpec
	settingstest.Fill(&spec, func(id *v1beta1.Identifier, _ randfill.Continue) { *id = "private" })
	settings := ShardGroupSettings(&spec)
	fields := reflect.TypeFor[shard.GroupSettings]()
	for i := range fields.NumField() {
		assert.False(t, reflect.ValueOf(settings).Field(i).IsZero(), "%s is not sent", fields.Field(i).Name)
	}
	sent, fields := reflect.ValueOf(settings.Candidates[0]), reflect.TypeFor[shard.Candidate]()
	for i := range fields.NumField() {
		assert.False(t, sent.Field(i).IsZero(), "%s of a candidate is not sent", fields.Field(i).Name)
	}
	imported, same := PoolCandidates([]shard.GroupSettings{settings})
	assert.True(t, same)
	pool := poolplan.Pool{
		NstanceMachinePool: &v1beta1.NstanceMachinePool{Spec: v1beta1.NstanceMachinePoolSpec{Candidates: imported}},
		Shards:             make([]distribute.Shard, 1), Groups: []*v1beta1.NstanceShardGroup{nil},
	}
	assert.Equal(t, spec.Candidates, pool.ShardCandidates([]int32{v1beta1.MaxReplicas})[0])
}

func TestImportedCandidates(t *testing.T) {
	of := func(candidates ...shard.Candidate) shard.GroupSettings {
		return shard.GroupSettings{Candidates: candidates}
	}
	base := func(most int32) shard.Candidate {
		return shard.Candidate{Name: "base", Market: "Standard", MaxInstances: &most}
	}
	rest, other := shard.Candidate{Name: "rest", Market: "Spot"}, shard.Candidate{Name: "rest", Market: "Spot", InstanceType: "m7i.large"}
	most := func(n int32) *intstr.IntOrString { return ptr.To(intstr.FromInt32(n)) }
	for name, test := range map[string]struct {
		shards []shard.GroupSettings
		want   []*intstr.IntOrString
		differ bool
	}{
		"none":                                   {shards: []shard.GroupSettings{of(), of()}},
		"shares are added up":                    {shards: []shard.GroupSettings{of(base(2), rest), of(base(1), rest), of(base(0), rest)}, want: []*intstr.IntOrString{most(3), nil}},
		"no pool is larger":                      {shards: []shard.GroupSettings{of(base(math.MaxInt32), rest), of(base(math.MaxInt32), rest)}, want: []*intstr.IntOrString{most(v1beta1.MaxReplicas), nil}},
		"another order":                          {shards: []shard.GroupSettings{of(base(1), rest), of(rest, base(1))}, differ: true},
		"another type":                           {shards: []shard.GroupSettings{of(base(1), rest), of(base(1), other)}, differ: true},
		"a maximum that one shard does not have": {shards: []shard.GroupSettings{of(base(1), rest), of(shard.Candidate{Name: "base", Market: "Standard"}, rest)}, differ: true},
		"a candidate more":                       {shards: []shard.GroupSettings{of(rest), of(rest, rest)}, differ: true},
		"a candidate less":                       {shards: []shard.GroupSettings{of(rest, rest), of(rest)}, differ: true},
		"a shard without candidates":             {shards: []shard.GroupSettings{of(rest), of()}, differ: true},
		"the first shard has none":               {shards: []shard.GroupSettings{of(), of(rest)}, differ: true},
	} {
		got, same := PoolCandidates(test.shards)
		assert.Equal(t, !test.differ, same, name)
		var maxima []*intstr.IntOrString
		for _, candidate := range got {
			maxima = append(maxima, candidate.MaxReplicas)
		}
		assert.Equal(t, test.want, maxima, name)
	}
}

// Otherwise one server could make every write of the status fail.
func TestReportedCandidatesAreWithinTheLimits(t *testing.T) {
	long := strings.Repeat("ä", v1beta1.MaxCandidateMessage+1)
	use := shard.CandidateUse{Name: long, InstanceType: long, Market: long, Instances: -1, Unavailable: long}
	got := ReportedCandidates(append([]shard.CandidateUse{{}}, slices.Repeat([]shard.CandidateUse{use}, v1beta1.MaxCandidates)...))
	assert.Len(t, got, v1beta1.MaxCandidates-1, "a candidate without a name is left out")
	for value, limit := range map[string]int{
		got[0].Name: v1beta1.MaxCandidateName, got[0].InstanceType: v1beta1.MaxReportedLength, got[0].Market: v1beta1.MaxCandidateName,
		got[0].Unavailable: v1beta1.MaxCandidateMessage,
	} {
		assert.True(t, fits(value, limit) && strings.HasPrefix(value, "ää"), value)
	}
	assert.Zero(t, got[0].Replicas)
	var filled shard.CandidateUse
	settingstest.Fill(&filled)
	reported := reflect.ValueOf(ReportedCandidates([]shard.CandidateUse{filled})[0])
	for i := range reported.NumField() {
		assert.False(t, reported.Field(i).IsZero(), "%s is not reported", reported.Type().Field(i).Name)
	}
	// 0 instances are a number.
	applied := controller.ApplyConfiguration[applyv1beta1.CandidateUseApplyConfiguration](ReportedCandidates([]shard.CandidateUse{{Name: "spot"}})[0])
	assert.Equal(t, applyv1beta1.CandidateUse().WithName("spot").WithReplicas(0), applied)
}

// Otherwise one server could make every write of the status fail.
func TestReportedSettingsAreWithinTheLimits(t *testing.T) {
	long := strings.Repeat("x", v1beta1.MaxReportedLength+1)
	config := ReportedConfig(shard.GroupSettings{
		Template: long, InstanceType: long, Subnets: slices.Repeat([]string{long}, v1beta1.MaxReportedSubnets+1),
	})
	assert.Len(t, config.Subnets, v1beta1.MaxReportedSubnets)
	for _, value := range append(config.Subnets, config.Template, config.InstanceType) {
		assert.LessOrEqual(t, utf8.RuneCountInString(value), v1beta1.MaxReportedLength)
		assert.True(t, strings.HasPrefix(value, "xxx"))
	}
	negative := ReportedConfig(shard.GroupSettings{DrainTimeoutSeconds: -1, ReturnAfterSeconds: -1})
	assert.Zero(t, negative.DrainTimeoutSeconds)
	assert.Zero(t, negative.ReturnAfterSeconds)

	long = strings.Repeat("x", v1beta1.MaxReportedTaintKey+1)
	node := shard.NodeSettings{MaxPods: -1, Taints: slices.Repeat([]shard.Taint{{Key: long, Value: long, Effect: long}}, v1beta1.MaxReportedTaints+1)}
	reported := ReportedConfig(shard.GroupSettings{Node: node}).Node
	assert.Zero(t, reported.MaxPods)
	assert.Len(t, reported.Taints, v1beta1.MaxReportedTaints)
	for _, taint := range reported.Taints {
		assert.LessOrEqual(t, utf8.RuneCountInString(taint.Key), v1beta1.MaxReportedTaintKey)
		assert.LessOrEqual(t, utf8.RuneCountInString(taint.Value), v1beta1.MaxReportedTaintValue)
		assert.LessOrEqual(t, utf8.RuneCountInString(taint.Effect), v1beta1.MaxReportedTaintValue)
	}
	assert.Nil(t, ReportedConfig(shard.GroupSettings{Node: shard.NodeSettings{MaxPods: -1}}).Node)
}

// A server adds labels and taints of its configuration, and a different value is drift.
func TestNodeSettingsInEffect(t *testing.T) {
	settings := shard.NodeSettings{Labels: map[string]string{"a": "1"}, Taints: []shard.Taint{{Key: "b", Value: "2", Effect: "NoSchedule"}}, MaxPods: 17}
	for name, test := range map[string]struct {
		change func(effective *shard.NodeSettings)
		want   bool
	}{
		"the same":          {func(*shard.NodeSettings) {}, true},
		"more of both":      {func(e *shard.NodeSettings) { e.Labels["c"] = "3"; e.Taints = append(e.Taints, shard.Taint{Key: "c"}) }, true},
		"another label":     {func(e *shard.NodeSettings) { e.Labels["a"] = "2" }, false},
		"a missing label":   {func(e *shard.NodeSettings) { delete(e.Labels, "a") }, false},
		"another taint":     {func(e *shard.NodeSettings) { e.Taints[0].Value = "3" }, false},
		"another effect":    {func(e *shard.NodeSettings) { e.Taints[0].Effect = "NoExecute" }, false},
		"another maximum":   {func(e *shard.NodeSettings) { e.MaxPods = 18 }, false},
		"a missing maximum": {func(e *shard.NodeSettings) { e.MaxPods = 0 }, false},
	} {
		effective := shard.NodeSettings{Labels: maps.Clone(settings.Labels), Taints: slices.Clone(settings.Taints), MaxPods: settings.MaxPods}
		test.change(&effective)
		assert.Equal(t, test.want, SettingsInEffect(shard.GroupSettings{Node: settings}, shard.GroupSettings{Node: effective}), name)
		assert.True(t, SettingsInEffect(shard.GroupSettings{}, shard.GroupSettings{Node: effective}), name)
	}
}

// The definition allows no empty strings.
func TestSettingsThatAreNotReportedAreNotApplied(t *testing.T) {
	assert.Equal(t, applyv1beta1.GroupConfig(), controller.ApplyConfiguration[applyv1beta1.GroupConfigApplyConfiguration](ReportedConfig(shard.GroupSettings{})))
}

// Otherwise one server could make every write of the status fail. An order without one of its instances
// would be another order.
func TestReportedDeletionOrderIsWithinTheLimits(t *testing.T) {
	order := func(next ...shard.NextDeletion) []v1beta1.NextDeletion {
		group := &shard.Group{DeletionOrder: next}
		for _, next := range next {
			group.Instances = append(group.Instances, shard.Instance{ID: next.InstanceID, ProviderID: "kwok:///a/" + next.InstanceID})
		}
		return ReportedDeletionOrder(group)
	}
	first, second := shard.NextDeletion{InstanceID: "knd1", Reason: "expired"}, shard.NextDeletion{InstanceID: "knd2"}
	want := []v1beta1.NextDeletion{
		{Instance: "knd1", ProviderID: "kwok:///a/knd1", Reason: "expired"}, {Instance: "knd2", ProviderID: "kwok:///a/knd2"},
	}
	assert.Equal(t, want, order(first, second))
	for name, bad := range map[string]shard.NextDeletion{
		"no id":           {},
		"a long id":       {InstanceID: strings.Repeat("x", v1beta1.MaxNextDeletionID+1)},
		"a long provider": {InstanceID: strings.Repeat("x", v1beta1.MaxNextDeletionProviderID)},
		"a long reason":   {InstanceID: "knd3", Reason: strings.Repeat("x", v1beta1.MaxNextDeletionReason+1)},
	} {
		assert.Equal(t, want[:1], order(first, bad, second), name)
	}
	assert.Empty(t, ReportedDeletionOrder(&shard.Group{DeletionOrder: []shard.NextDeletion{first}}), "an instance without a provider id")
	assert.Len(t, order(slices.Repeat([]shard.NextDeletion{first}, v1beta1.MaxDeletionOrder+1)...), v1beta1.MaxDeletionOrder)
}
