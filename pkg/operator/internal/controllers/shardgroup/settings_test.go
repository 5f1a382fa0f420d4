// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"reflect"
	"testing"

	"sigs.k8s.io/randfill"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/settingstest"
)

// A setting that is forgotten anywhere between the spec and the server, or between
// the server and the status, would silently never be set or never be corrected.
func TestEverySettingIsSentComparedAndReported(t *testing.T) {
	var spec v1beta1.NstanceShardGroupSpec
	settingstest.Fill(&spec.GroupSettings, func(id *v1beta1.Identifier, _ randfill.Continue) { *id = "private" })
	config := wanted(&v1beta1.NstanceShardGroup{Spec: spec}, nil)
	group := shard.Group{GroupSettings: config.GroupSettings, Declared: &config.GroupSettings}
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
		if reported := reflect.ValueOf(*reportedConfig(&group)).FieldByName(name); !reported.IsValid() || reported.IsZero() {
			t.Errorf("%s is not reported", name)
		}
		if applied := reflect.ValueOf(*applyConfig(reportedConfig(&group))).FieldByName(name); !applied.IsValid() || applied.IsZero() {
			t.Errorf("%s is not written to the status", name)
		}
	}
}
