// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// InstanceConfig returns the configuration of a CreateInstance request.
func InstanceConfig(spec shard.InstanceSpec) *nstancev1.InstanceConfig {
	return &nstancev1.InstanceConfig{Group: spec.Group, InstanceType: spec.InstanceType, Vars: spec.Vars}
}

// Instance converts response.
func Instance(response *nstancev1.InstanceStatusResponse) shard.Instance {
	return shard.Instance{
		ID:         response.GetInstanceId(),
		State:      shard.InstanceState(response.GetStatus()),
		ProviderID: response.GetProviderInstanceId(),
		DeleteAt:   timeOrZero(response.GetDeleteAt()),
	}
}

// timeOrZero returns the zero time for a missing or invalid timestamp. AsTime would
// return the year 1970.
func timeOrZero(timestamp *timestamppb.Timestamp) time.Time {
	if !timestamp.IsValid() {
		return time.Time{}
	}
	return timestamp.AsTime()
}
