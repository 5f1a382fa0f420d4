// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"reflect"
	"testing"

	"sigs.k8s.io/randfill"

	"nstance.dev/operator/pkg/server/groups"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// A setting that is forgotten here would never arrive, or never be reported.
func TestEverySettingIsReceivedAndReported(t *testing.T) {
	config := &nstancev1.GroupConfig{
		Template: "worker", InstanceType: "large", Subnets: []string{"private"}, Vars: map[string]string{"a": "1"},
	}
	received := reflect.ValueOf(settingsFrom(config))
	for i := range received.NumField() {
		if received.Field(i).IsZero() {
			t.Errorf("%s is not received", received.Type().Field(i).Name)
		}
	}

	var group groups.Group
	randfill.New().NilChance(0).NumElements(1, 1).Funcs(func(s *string, _ randfill.Continue) { *s = "x" }).Fill(&group.Settings)
	group.Declared = &group.Settings
	status := &nstancev1.GroupStatus{}
	setSettings(status, &group)
	fields := status.GetDeclared().ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := fields.Get(i).Name()
		if !status.GetDeclared().ProtoReflect().Has(fields.Get(i)) {
			t.Errorf("%s is not reported as declared", name)
		}
		if effective := status.ProtoReflect().Descriptor().Fields().ByName(name); effective == nil || !status.ProtoReflect().Has(effective) {
			t.Errorf("%s is not reported as effective", name)
		}
	}
	if got, want := fields.Len(), received.NumField(); got != want {
		t.Errorf("the wire has %d settings, the server %d", got, want)
	}
	setSettings(status, &groups.Group{})
	if status.GetDeclared() == nil {
		t.Error("a group without a declaration reports none, as a server without the extension")
	}
}
