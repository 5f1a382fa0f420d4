// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestGroup(t *testing.T) {
	got := Group(&nstancev1.GroupStatus{
		Key: "workers", Tenant: "default", Template: "worker", Size: 3, InstanceType: "small",
		Subnets: []string{"private", "public"}, Vars: map[string]string{"a": "1"}, IsStatic: true, Etag: "e",
		ActualSize: 2, ProviderIds: []string{"kwok://a/1", "kwok://a/2"}, Deleting: true,
		Instances: &nstancev1.ManagedInstances{Instances: []*nstancev1.ManagedInstance{
			{Id: "knd2", Status: "pending"}, {Id: "knd1", ProviderId: "kwok://a/1", Status: "running", CreatedAt: timestamppb.Now()},
		}},
		RemoveFirst: []string{"knd2"},
		Declared: &nstancev1.GroupSettings{
			Template: "worker", InstanceType: "tiny", Subnets: []string{"public"}, Vars: map[string]string{"b": "2"},
		},
		Node: &nstancev1.NodeShape{
			Architecture: "arm64", OperatingSystem: "linux",
			Capacity: map[string]string{"cpu": "2"}, Labels: map[string]string{"tier": "web"},
			Taints: []*nstancev1.NodeTaint{{Key: "dedicated", Value: "web", Effect: "NoSchedule"}},
		},
		Revision:  &nstancev1.Revision{Uid: "uid", Generation: 7},
		Shortfall: &nstancev1.Shortfall{Missing: 2, Message: "none left"},
	})
	want := shard.Group{
		Key: "workers", Tenant: "default", GroupSettings: shard.GroupSettings{Template: "worker", InstanceType: "small", Subnets: []string{"private", "public"}, Vars: map[string]string{"a": "1"}}, Size: 3, Static: true, ETag: "e",
		ActualSize: 2, ProviderIDs: []string{"kwok://a/1", "kwok://a/2"}, Deleting: true,
		ListsInstances: true,
		Instances: []shard.Instance{
			{ID: "knd1", State: shard.InstanceRunning, ProviderID: "kwok://a/1"}, {ID: "knd2", State: shard.InstancePending},
		},
		RemoveFirst: []string{"knd2"},
		Declared: &shard.GroupSettings{
			Template: "worker", InstanceType: "tiny", Subnets: []string{"public"}, Vars: map[string]string{"b": "2"},
		},
		Node: &shard.NodeShape{
			Architecture: "arm64", OperatingSystem: "linux",
			Capacity: map[string]string{"cpu": "2"}, Labels: map[string]string{"tier": "web"},
			Taints: []shard.Taint{{Key: "dedicated", Value: "web", Effect: "NoSchedule"}},
		},
		Revision:  &shard.Revision{UID: "uid", Generation: 7},
		Shortfall: shard.Shortfall{Missing: 2, Message: "none left"},
	}
	if !got.Equal(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	noZeroField(t, got)
	if got := Group(nil); !got.Equal(shard.Group{}) {
		t.Errorf("a missing status becomes %+v", got)
	}
	none := &nstancev1.GroupStatus{Instances: &nstancev1.ManagedInstances{}}
	if got := Group(none); !got.ListsInstances || got.Instances != nil {
		t.Errorf("an empty list of instances becomes %+v", got)
	}
	if got := Group(&nstancev1.GroupStatus{Revision: &nstancev1.Revision{}}); got.Revision == nil || *got.Revision != (shard.Revision{}) {
		t.Errorf("an empty revision becomes %+v", got)
	}
}

func TestUpsert(t *testing.T) {
	config := shard.GroupConfig{
		GroupSettings: shard.GroupSettings{Template: "worker", InstanceType: "small", Subnets: []string{"private", "public"}, Vars: map[string]string{"a": "1"}}, Size: 3,
		RemoveFirst: []string{"knd2", "knd1"},
		Revision:    &shard.Revision{UID: "old", Generation: 5},
		Replaces:    &shard.Revision{UID: "new", Generation: 9},
	}
	noZeroField(t, config)
	want := &nstancev1.UpsertGroupRequest{
		Key: "workers",
		Config: &nstancev1.GroupConfig{
			Template: "worker", Size: 3, InstanceType: "small",
			Subnets: []string{"private", "public"}, Vars: map[string]string{"a": "1"},
		},
		RemoveFirst: []string{"knd2", "knd1"},
		Declarative: true,
		Revision:    &nstancev1.Revision{Uid: "old", Generation: 5},
		Replaces:    &nstancev1.Revision{Uid: "new", Generation: 9},
	}
	if got := Upsert("workers", config); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := Upsert("workers", shard.GroupConfig{}); got.Revision != nil || got.Replaces != nil {
		t.Errorf("without revisions got %v", got)
	}
}

func TestDelete(t *testing.T) {
	want := &nstancev1.DeleteGroupRequest{Key: "workers", Revision: &nstancev1.Revision{Uid: "uid", Generation: 7}}
	if got := Delete("workers", &shard.Revision{UID: "uid", Generation: 7}); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := Delete("workers", nil); got.Revision != nil {
		t.Errorf("without a revision got %v", got)
	}
}

// noZeroField fails if a field is zero, so that tests must set added fields too.
func noZeroField(t *testing.T, value any) {
	t.Helper()
	v := reflect.ValueOf(value)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("field %s has no value", v.Type().Field(i).Name)
		}
	}
}
