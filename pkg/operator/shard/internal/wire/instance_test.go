// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestInstanceConfig(t *testing.T) {
	spec := shard.InstanceSpec{Group: "workers", InstanceType: "small", Vars: map[string]string{"a": "1"}}
	noZeroField(t, spec)
	want := &nstancev1.InstanceConfig{Group: "workers", InstanceType: "small", Vars: map[string]string{"a": "1"}}
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
	noZeroField(t, got)

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
