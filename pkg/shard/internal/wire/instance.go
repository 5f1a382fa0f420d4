// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// InstanceConfig is the wire form of order.
func InstanceConfig(order shard.InstanceOrder) *nstancev1.InstanceConfig {
	return &nstancev1.InstanceConfig{Group: order.Group, InstanceType: order.InstanceType, Vars: order.Vars}
}

// Instance is what a server reports of one instance.
func Instance(answer *nstancev1.InstanceStatusResponse) shard.Instance {
	return shard.Instance{
		ID:         answer.GetInstanceId(),
		State:      shard.InstanceState(answer.GetStatus()),
		ProviderID: answer.GetProviderInstanceId(),
		DeleteAt:   moment(answer.GetDeleteAt()),
	}
}

// moment is zero when the server did not say, or nothing sensible: a timestamp
// that is missing would become the year 1970.
func moment(timestamp *timestamppb.Timestamp) time.Time {
	if !timestamp.IsValid() {
		return time.Time{}
	}
	return timestamp.AsTime()
}
