// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"sigs.k8s.io/randfill"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/settingstest"
)

// A pool that is imported and lacks a setting would remove it from the servers, which may
// replace every instance.
func TestEverySettingIsImported(t *testing.T) {
	var spec v1beta1.GroupSettings
	settingstest.Fill(&spec, func(id *v1beta1.Identifier, _ randfill.Continue) { *id = "private" })
	assert.Equal(t, spec, SpecSettings(ShardSettings(spec)))
}
