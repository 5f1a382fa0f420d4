// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"time"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// minCapacityRetry and maxCapacityRetry bound the growing time before a shard that has no
// capacity is requested again. The other shards are requested at once.
const (
	minCapacityRetry = 15 * time.Second
	maxCapacityRetry = 5 * time.Minute
)

// rejectForCapacity stores that the shard has declined the request because it has no
// capacity (shard.IsOutOfCapacity).
func (s *syncState) rejectForCapacity(observed observation, message string) outcome {
	var before int
	for _, last := range []*rejection{s.rejection, s.declinedBy(observed.shardID)} {
		if last != nil && last.noCapacity > before {
			before = last.noCapacity
		}
	}
	delay := maxCapacityRetry
	if before < 5 {
		delay = min(delay, minCapacityRetry<<before)
	}
	s.rejection = &rejection{
		etag: observed.etag, until: observed.now.Add(delay), reason: v1beta1.ReasonOutOfCapacity, message: message,
		declined: true, noCapacity: before + 1,
	}
	return outcome{problem: &problem{v1beta1.ReasonOutOfCapacity, message}, wait: delay}
}

// declinedBy returns the last rejection of a shard that was left for another one.
func (s *syncState) declinedBy(shard string) *rejection {
	if last, found := s.declined[shard]; found {
		return &last
	}
	return nil
}
