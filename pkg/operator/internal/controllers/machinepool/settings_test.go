// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"reflect"
	"testing"

	"sigs.k8s.io/randfill"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/settingstest"
)

// A setting that is forgotten here would silently never reach the shard groups.
func TestEverySettingIsAppliedAndCompared(t *testing.T) {
	pool := &v1beta1.NstanceMachinePool{}
	pool.UID = "uid"
	settingstest.Fill(&pool.Spec.GroupSettings, func(id *v1beta1.Identifier, _ randfill.Continue) { *id = "private" })
	want := wantedSpec(pool, "a", 1)
	if !reflect.DeepEqual(want.GroupSettings, pool.Spec.GroupSettings) {
		t.Errorf("the shard group gets %+v, want %+v", want.GroupSettings, pool.Spec.GroupSettings)
	}

	applied := reflect.ValueOf(applySettings(&want.GroupSettings))
	settings := reflect.TypeFor[v1beta1.GroupSettings]()
	for i := range settings.NumField() {
		name := settings.Field(i).Name
		if field := applied.FieldByName(name); !field.IsValid() || field.IsZero() {
			t.Errorf("%s is not applied", name)
		}
	}
	if none := applySettings(&v1beta1.GroupSettings{}); !reflect.ValueOf(none).IsZero() {
		t.Errorf("settings that are left out are applied as %+v", none)
	}
}
