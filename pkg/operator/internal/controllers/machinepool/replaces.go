// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import "nstance.dev/operator/pkg/apis/infrastructure/v1beta1"

// resizes reports whether sizes, by shard, change the size of a shard group.
func resizes(shards []shardState, sizes []int32) bool {
	for i := range shards {
		if shards[i].group != nil && shards[i].group.Spec.Size != sizes[i] {
			return true
		}
	}
	return false
}

// replaces returns the value of AnnotationReplaces for a shard group that gets a size.
//
// A shard group that a restore of etcd has made older than the group on its shard is not
// sent (docs/operations.md#backup-and-restore). When the replicas of its pool are changed
// afterwards, the new size is what the user wants now, and replaces what the shard has.
// A size that terminates instances does not: the replicas may have been changed by an
// autoscaler that has not seen those of the shard. An administrator decides about it.
func (s *shardState) replaces(size int32, resized bool) string {
	if s.group == nil || s.reported == nil || s.reported.Revision == nil {
		return ""
	}
	last := s.reported.Revision
	if last.UID != string(s.group.UID) || last.Generation <= s.group.Generation || size < s.reported.Size {
		return ""
	}
	if current := s.group.Annotations[v1beta1.AnnotationReplaces]; resized || current == last.String() {
		return last.String()
	}
	return ""
}
