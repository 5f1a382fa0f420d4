// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"sigs.k8s.io/randfill"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
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
	assert.Zero(t, ReportedConfig(shard.GroupSettings{DrainTimeoutSeconds: -1}).DrainTimeoutSeconds)

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
