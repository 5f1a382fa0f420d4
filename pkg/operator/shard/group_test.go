// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard_test

import (
	"reflect"
	"testing"

	"nstance.dev/operator/pkg/operator/shard"
)

func TestGroupEqual(t *testing.T) {
	group := shard.Group{
		Key: "workers", Tenant: "default", GroupSettings: shard.GroupSettings{Template: "worker", InstanceType: "small", Subnets: []string{"private"}, Vars: map[string]string{"a": "1"}}, Size: 2, KnownSettings: 1021, MinSize: 1, Static: true, ETag: "e",
		ActualSize: 1, Declared: &shard.GroupSettings{Template: "other"}, ProviderIDs: []string{"kwok://a/1"}, Deleting: true,
		ListsInstances: true, Instances: []shard.Instance{{ID: "knd1"}}, DeletionOrder: []shard.NextDeletion{{InstanceID: "knd1"}}, RemoveFirst: []string{"knd1"}, Shape: &shard.NodeShape{Architecture: "arm64"},
		Revision: &shard.Revision{UID: "uid", Generation: 7}, Shortfall: shard.Shortfall{Missing: 1, Message: "none left"},
		Rotation: &shard.RotationGrant{UpToDate: 1}, Replace: []string{"knd2"}, Progress: &shard.RotationProgress{},
		CandidateUse: []shard.CandidateUse{{Name: "spot"}},
	}
	if same := group; !group.Equal(same) {
		t.Error("a group is not equal to its copy")
	}
	fields := reflect.TypeFor[shard.Group]()
	for i := range fields.NumField() {
		other := group
		reflect.ValueOf(&other).Elem().Field(i).SetZero()
		if group.Equal(other) || other.Equal(group) {
			t.Errorf("Equal ignores a difference in %s", fields.Field(i).Name)
		}
	}
	newer := group
	newer.Revision = &shard.Revision{UID: "uid", Generation: 8}
	if group.Equal(newer) {
		t.Error("Equal ignores the generation of the revision")
	}
	missing := shard.Group{Key: "workers"}
	empty := shard.Group{Key: "workers", GroupSettings: shard.GroupSettings{Subnets: []string{}, Vars: map[string]string{}}, ProviderIDs: []string{}}
	if !missing.Equal(empty) {
		t.Error("missing and empty lists and vars are not equal")
	}
}
