// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
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
	settingstest.Fill(&spec, func(id *v1beta1.Identifier, _ randfill.Continue) { *id = "private" })
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
}

// The definition allows no empty strings.
func TestSettingsThatAreNotReportedAreNotApplied(t *testing.T) {
	assert.Equal(t, applyv1beta1.GroupConfig(), controller.ApplyConfiguration[applyv1beta1.GroupConfigApplyConfiguration](ReportedConfig(shard.GroupSettings{})))
}
