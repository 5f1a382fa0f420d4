// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"

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

// TestSupportedSettings: what a server does not know is left out and named.
func TestSupportedSettings(t *testing.T) {
	var all shard.GroupSettings
	settingstest.Fill(&all)
	chosen := all
	chosen.ReturnAfterSeconds = 0
	labeled := chosen
	labeled.Candidates = nil
	drained := labeled
	drained.Node = shard.NodeSettings{}
	balanced := drained
	balanced.DrainTimeoutSeconds = 0
	older := balanced
	older.LoadBalancers = nil
	for known, want := range map[int32]shard.GroupSettings{
		0: older, 1020: older, 1021: balanced, 1022: drained, 1023: labeled, 1024: chosen, 1025: all, 2000: all,
	} {
		got, unsupported := shard.Group{KnownSettings: known}.Supported(all)
		assert.Equal(t, want, got, known)
		assert.Equal(t, known < 1021, slices.Contains(unsupported, "loadBalancers"), known)
		assert.Equal(t, known < 1022, slices.Contains(unsupported, "drainTimeoutSeconds"), known)
		assert.Equal(t, known < 1023, slices.Contains(unsupported, "nodeSettings"), known)
		assert.Equal(t, known < 1024, slices.Contains(unsupported, "candidates"), known)
		assert.Equal(t, known < 1025, slices.Contains(unsupported, "returnAfterSeconds"), known)
		assert.Equal(t, known >= 1024, shard.Group{KnownSettings: known}.KnowsCandidates(), known)
	}
	_, unsupported := shard.Group{}.Supported(older)
	assert.Empty(t, unsupported)
}

// A maximum of 0 is a maximum: it must reach the server, and differ from none.
func TestCandidatesAreEqual(t *testing.T) {
	candidate := shard.Candidate{Name: "spot", InstanceType: "m7i.large", Market: "Spot"}
	same := candidate
	assert.True(t, candidate.Equal(same))
	fields := reflect.TypeFor[shard.Candidate]()
	for i := range fields.NumField() {
		other := candidate
		settingstest.Fill(reflect.ValueOf(&other).Elem().Field(i).Addr().Interface())
		assert.False(t, candidate.Equal(other), fields.Field(i).Name)
		settings := shard.GroupSettings{Candidates: []shard.Candidate{candidate, other}}
		assert.Equal(t, settings, shard.SettingsOf(settings.Config()))
		assert.False(t, settings.Equal(shard.GroupSettings{Candidates: []shard.Candidate{other, candidate}}), "another order")
	}
	none := candidate
	none.MaxInstances = ptr.To[int32](0)
	assert.False(t, candidate.Equal(none))
	settings := shard.GroupSettings{Candidates: []shard.Candidate{none, candidate}}
	assert.Equal(t, settings, shard.SettingsOf(settings.Config()))
}
