// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/testing/settingstest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// A setting that is forgotten here would never arrive, or never be reported.
func TestEverySettingIsReceivedAndReported(t *testing.T) {
	var config nstancev1.GroupConfig
	settingstest.Fill(&config)
	received := groups.SettingsOf(&config)
	values := reflect.ValueOf(received)
	for i := range values.NumField() {
		if values.Field(i).IsZero() {
			t.Errorf("%s is not received", values.Type().Field(i).Name)
		}
	}

	var status nstancev1.GroupStatus
	setSettings(&status, &groups.Group{Settings: received, Declared: &received, OperatorVars: received.Vars})
	fields := status.GetDeclared().ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		name := fields.Get(i).Name()
		sent := valueOf(&config, name)
		if !valueOf(status.GetDeclared(), name).Equal(sent) {
			t.Errorf("%s is not reported as declared", name)
		}
		if !valueOf(&status, name).Equal(sent) {
			t.Errorf("%s is not reported as effective", name)
		}
	}
	if got, want := fields.Len(), values.NumField(); got != want {
		t.Errorf("the wire has %d settings, the server %d", got, want)
	}
	setSettings(&status, &groups.Group{})
	if status.GetDeclared() == nil {
		t.Error("a group without a declaration reports none, as a server without the extension")
	}
}

// valueOf returns the value of a field, the invalid value if the message has no such field.
func valueOf(message proto.Message, name protoreflect.Name) protoreflect.Value {
	m := message.ProtoReflect()
	field := m.Descriptor().Fields().ByName(name)
	if field == nil {
		return protoreflect.Value{}
	}
	return m.Get(field)
}
