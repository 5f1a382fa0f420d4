// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard_test

import (
	"reflect"
	"testing"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/settingstest"
)

// A change of a setting that Equal ignores would never reach a handler.
func TestEverySettingIsCompared(t *testing.T) {
	var settings shard.GroupSettings
	settingstest.Fill(&settings)
	if same := settings; !settings.Equal(same) {
		t.Error("settings are not equal to their copy")
	}
	fields := reflect.TypeFor[shard.GroupSettings]()
	for i := range fields.NumField() {
		other := settings
		reflect.ValueOf(&other).Elem().Field(i).SetZero()
		if settings.Equal(other) || other.Equal(settings) {
			t.Errorf("Equal ignores a difference in %s", fields.Field(i).Name)
		}
	}
}

// A setting that is forgotten here would never be sent or never be read. The same function
// reads the three messages with settings.
func TestEverySettingIsConverted(t *testing.T) {
	var settings shard.GroupSettings
	settingstest.Fill(&settings)
	if got := shard.SettingsOf(settings.Config()); !reflect.DeepEqual(got, settings) {
		t.Errorf("settings come back as %+v, want %+v", got, settings)
	}
}
