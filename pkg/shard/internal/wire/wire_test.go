// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestGroup(t *testing.T) {
	got := Group(&nstancev1.GroupStatus{
		Key: "workers", Tenant: "default", Template: "worker", Size: 3, InstanceType: "small",
		Subnets: []string{"private", "public"}, Vars: map[string]string{"a": "1"}, IsStatic: true, Etag: "e",
		ActualSize: 2, ProviderIds: []string{"kwok://a/1", "kwok://a/2"}, Deleting: true,
	})
	want := shard.Group{
		Key: "workers", Tenant: "default", Template: "worker", Size: 3, InstanceType: "small",
		Subnets: []string{"private", "public"}, Vars: map[string]string{"a": "1"}, Static: true, ETag: "e",
		ActualSize: 2, ProviderIDs: []string{"kwok://a/1", "kwok://a/2"}, Deleting: true,
	}
	if !got.Equal(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	noZeroField(t, got)
	if got := Group(nil); !got.Equal(shard.Group{}) {
		t.Errorf("a missing status gives %+v", got)
	}
}

func TestConfig(t *testing.T) {
	config := shard.GroupConfig{
		Template: "worker", Size: 3, InstanceType: "small",
		Subnets: []string{"private", "public"}, Vars: map[string]string{"a": "1"},
	}
	noZeroField(t, config)
	want := &nstancev1.GroupConfig{
		Template: "worker", Size: 3, InstanceType: "small",
		Subnets: []string{"private", "public"}, Vars: map[string]string{"a": "1"},
	}
	if got := Config(config); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// noZeroField fails when a field was added that the test does not know.
func noZeroField(t *testing.T, value any) {
	t.Helper()
	v := reflect.ValueOf(value)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("field %s has no value", v.Type().Field(i).Name)
		}
	}
}
