// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// aGrant returns a grant of a shard group, and its message, which has the numbers that are 0.
func aGrant() (*shard.RotationGrant, *nstancev1.RotationGrant) {
	at := time.Unix(100, 0).UTC()
	return &shard.RotationGrant{MaxSurge: 2, MaxUnavailable: 0, UpToDate: 0, NotAfter: at, MaxAgeSeconds: 7200, Target: "t"}, &nstancev1.RotationGrant{
		MaxSurge: proto.Int32(2), MaxUnavailable: proto.Int32(0), UpToDate: proto.Int32(0), NotAfter: timestamppb.New(at), MaxAgeSeconds: 7200, Target: "t",
	}
}

func TestGroup(t *testing.T) {
	grant, message := aGrant()
	got := Group(&nstancev1.GroupStatus{
		Key: "workers", Tenant: "default", Template: "worker", Size: 3, InstanceType: "small",
		Subnets: []string{"private", "public"}, Vars: map[string]string{"a": "1"}, IsStatic: true, Etag: "e",
		ActualSize: 2, ProviderIds: []string{"kwok://a/1", "kwok://a/2"}, Deleting: true,
		Instances: &nstancev1.ManagedInstances{Instances: []*nstancev1.ManagedInstance{
			{Id: "knd2", Status: "pending"}, {Id: "knd1", ProviderId: "kwok://a/1", Status: "running", CreatedAt: &timestamppb.Timestamp{Seconds: 100, Nanos: 5}, Outdated: "expired"},
		}},
		RemoveFirst:      []string{"knd2"},
		Rotation:         message,
		Replace:          []string{"knd1"},
		RotationProgress: &nstancev1.RotationProgress{Outdated: map[string]int32{"expired": 1}, UpToDate: 2, Above: 3, Below: 4, Target: "u", ForcedAt: &timestamppb.Timestamp{Seconds: 200}},
		Declared: &nstancev1.GroupSettings{
			Template: "worker", InstanceType: "tiny", Subnets: []string{"public"}, Vars: map[string]string{"b": "2"},
		},
		Node: &nstancev1.NodeShape{
			Architecture: "arm64", OperatingSystem: "linux",
			Capacity: map[string]string{"cpu": "2"}, Labels: map[string]string{"tier": "web"},
			Taints: []*nstancev1.NodeTaint{{Key: "dedicated", Value: "web", Effect: "NoSchedule"}},
		},
		Revision:      &nstancev1.Revision{Uid: "uid", Generation: 7},
		Shortfall:     &nstancev1.Shortfall{Missing: 2, Message: "none left"},
		DeletionOrder: []*nstancev1.NextDeletion{{InstanceId: "knd2", Reason: "expired"}, {InstanceId: "knd1"}},
		Limits:        &nstancev1.GroupLimits{MinSize: 1},
		CandidateUse: slices.Repeat([]*nstancev1.CandidateUse{
			{Name: "spot", InstanceType: "m7i.large", Market: "Spot", Instances: 2, Unavailable: "none left"},
		}, shard.MaxCandidates+1),

		KnownSettings: 1021,
	})
	want := shard.Group{
		Key: "workers", Tenant: "default", GroupSettings: shard.GroupSettings{Template: "worker", InstanceType: "small", Subnets: []string{"private", "public"}, Vars: map[string]string{"a": "1"}}, Size: 3, KnownSettings: 1021, MinSize: 1, Static: true, ETag: "e",
		ActualSize: 2, ProviderIDs: []string{"kwok://a/1", "kwok://a/2"}, Deleting: true,
		ListsInstances: true,
		Instances: []shard.Instance{
			{ID: "knd1", State: shard.InstanceRunning, ProviderID: "kwok://a/1", Created: 100, Outdated: "expired"}, {ID: "knd2", State: shard.InstancePending},
		},
		RemoveFirst: []string{"knd2"},
		Rotation:    grant,
		Replace:     []string{"knd1"},
		Progress:    &shard.RotationProgress{Outdated: map[string]int32{"expired": 1}, UpToDate: 2, Above: 3, Below: 4, Target: "u", ForcedAt: time.Unix(200, 0).UTC()},
		Declared: &shard.GroupSettings{
			Template: "worker", InstanceType: "tiny", Subnets: []string{"public"}, Vars: map[string]string{"b": "2"},
		},
		Shape: &shard.NodeShape{
			Architecture: "arm64", OperatingSystem: "linux",
			Capacity: map[string]string{"cpu": "2"}, Labels: shard.LabelsOf(map[string]string{"tier": "web"}),
			Taints: []shard.Taint{{Key: "dedicated", Value: "web", Effect: "NoSchedule"}},
		},
		Revision:      &shard.Revision{UID: "uid", Generation: 7},
		Shortfall:     shard.Shortfall{Missing: 2, Message: "none left"},
		DeletionOrder: []shard.NextDeletion{{InstanceID: "knd2", Reason: "expired"}, {InstanceID: "knd1"}},
		CandidateUse: slices.Repeat([]shard.CandidateUse{
			{Name: "spot", InstanceType: "m7i.large", Market: "Spot", Instances: 2, Unavailable: "none left"},
		}, shard.MaxCandidates),
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
	grant, message := aGrant()
	config := shard.GroupConfig{
		Rotation:      grant,
		Replace:       []string{"knd1"},
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
		Rotation:    message,
		Replace:     []string{"knd1"},
		Declarative: true,
		Revision:    &nstancev1.Revision{Uid: "old", Generation: 5},
		Replaces:    &nstancev1.Revision{Uid: "new", Generation: 9},
	}
	if got := Upsert("workers", config); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := Upsert("workers", shard.GroupConfig{}); got.Revision != nil || got.Replaces != nil || got.Rotation != nil {
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

// noZeroField fails if a field is zero, so that tests must set new fields too, except those that the
// message does not have.
func noZeroField(t *testing.T, value any, except ...string) {
	t.Helper()
	v := reflect.ValueOf(value)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() != slices.Contains(except, name) {
			t.Errorf("field %s has the value %v", name, v.Field(i))
		}
	}
}

func TestInstanceConfig(t *testing.T) {
	spec := shard.InstanceSpec{Group: "workers", InstanceType: "small", Vars: map[string]string{"a": "1"}, LoadBalancers: []string{"web"}}
	noZeroField(t, spec)
	want := &nstancev1.InstanceConfig{Group: "workers", InstanceType: "small", Vars: map[string]string{"a": "1"}, LoadBalancers: []string{"web"}}
	if got := InstanceConfig(spec); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestInstance(t *testing.T) {
	deleteAt := time.Date(2030, time.May, 1, 12, 0, 0, 5, time.UTC)
	got := Instance(&nstancev1.InstanceStatusResponse{
		InstanceId: "knd1", Tenant: "default", Status: "running", CreatedAt: timestamppb.Now(), LastSeen: timestamppb.Now(),
		ProviderInstanceId: "kwok://a/1", DeleteAt: timestamppb.New(deleteAt),
	})
	want := shard.Instance{ID: "knd1", State: shard.InstanceRunning, ProviderID: "kwok://a/1", DeleteAt: deleteAt}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	noZeroField(t, got, "Created", "Outdated") // only groups report these

	for name, response := range map[string]*nstancev1.InstanceStatusResponse{
		"no response":          nil,
		"no timestamp":         {},
		"an invalid timestamp": {DeleteAt: &timestamppb.Timestamp{Seconds: math.MaxInt64}},
	} {
		if got := Instance(response); got != (shard.Instance{}) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestNotice(t *testing.T) {
	since := time.Date(2030, time.May, 1, 12, 0, 0, 5, time.UTC)
	got := Notice(&nstancev1.InstanceEvent{
		InstanceId: "knd1", Tenant: "default", ProviderInstanceId: "kwok://a/1", Group: "workers",
		Status: "pending_deletion", Reason: "expired",
		UnhealthyAt: timestamppb.New(since), DeleteAt: timestamppb.New(since.Add(time.Hour)), Addresses: []string{"10.0.0.7"},
	})
	// Events do not contain Announced and Deadline.
	got.Announced, got.Deadline = 1, since
	want := shard.DeletionNotice{
		InstanceID: "knd1", ProviderID: "kwok://a/1", Group: "workers",
		State: shard.Draining, Reason: "expired", Since: since, DeleteAt: since.Add(time.Hour), Deadline: since, Announced: 1,
		Addresses: []string{"10.0.0.7"},
	}
	assert.Equal(t, want, got)
	noZeroField(t, got)

	for name, event := range map[string]*nstancev1.InstanceEvent{
		"no event":                    nil,
		"no timestamps":               {},
		"invalid timestamps":          {UnhealthyAt: &timestamppb.Timestamp{Seconds: math.MaxInt64}, DeleteAt: &timestamppb.Timestamp{Nanos: -1}},
		"timestamps of the zero time": {UnhealthyAt: timestamppb.New(time.Time{}), DeleteAt: timestamppb.New(time.Time{})},
	} {
		assert.Equal(t, shard.DeletionNotice{}, Notice(event), name)
	}
}

func TestErrorEvent(t *testing.T) {
	happened := time.Date(2030, time.May, 1, 12, 0, 0, 5, time.UTC)
	got := ErrorEvent(&nstancev1.ErrorEvent{
		Group: "workers", InstanceId: "knd1", Error: "out of capacity", Timestamp: timestamppb.New(happened),
	})
	want := shard.ErrorEvent{Group: "workers", InstanceID: "knd1", Message: "out of capacity", Time: happened}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	noZeroField(t, got)

	for name, event := range map[string]*nstancev1.ErrorEvent{
		"no event":             nil,
		"no timestamp":         {},
		"an invalid timestamp": {Timestamp: &timestamppb.Timestamp{Seconds: math.MaxInt64}},
		"a negative timestamp": {Timestamp: &timestamppb.Timestamp{Nanos: -1}},
	} {
		if got := ErrorEvent(event); got != (shard.ErrorEvent{}) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
