// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	"reflect"
	"testing"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/settingstest"
)

// A setting that is forgotten here would never be sent, or never be read. The three
// messages that have settings are read by the same function.
func TestEverySettingIsConverted(t *testing.T) {
	var config shard.GroupConfig
	settingstest.Fill(&config.GroupSettings)
	if got := settings(groupConfig(config)); !reflect.DeepEqual(got, config.GroupSettings) {
		t.Errorf("settings come back as %+v, want %+v", got, config.GroupSettings)
	}
}
