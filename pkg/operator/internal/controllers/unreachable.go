// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"time"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// LostGrace is how long a shard may be disconnected before its objects report it. A
// server that restarts is reachable again within it, and causes no writes.
const LostGrace = 5 * time.Second

// UnreachableReason returns the reason of a condition about a shard that err made
// unreachable.
func UnreachableReason(err error) string {
	switch {
	case shard.IsWrongServer(err):
		return v1beta1.ReasonWrongShard
	case shard.IsOtherCluster(err):
		return v1beta1.ReasonOtherCluster
	}
	return v1beta1.ReasonShardUnreachable
}
