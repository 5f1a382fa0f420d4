// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"fmt"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// revisionOf returns the revision for requests about object.
func revisionOf(object *v1beta1.NstanceShardGroup) shard.Revision {
	return shard.Revision{UID: string(object.UID), Generation: object.Generation}
}

// reportedRevision returns the revision of group, the zero Revision if the group does not
// exist or its server does not support revisions.
func reportedRevision(group *shard.Group) shard.Revision {
	if group == nil || group.Revision == nil {
		return shard.Revision{}
	}
	return *group.Revision
}

// recorded reports whether the server has the revision of object. It returns true for a server
// that does not support revisions, because no call would change that.
func recorded(object *v1beta1.NstanceShardGroup, group *shard.Group) bool {
	return group.Revision == nil || *group.Revision == revisionOf(object)
}

// newer reports whether the server has a newer revision of the same object. Only the server
// can compare revisions of different objects.
func newer(object *v1beta1.NstanceShardGroup, group *shard.Group) bool {
	last, own := reportedRevision(group), revisionOf(object)
	return last.UID == own.UID && last.Generation > own.Generation
}

// replaced returns the reported revision that the pool or an administrator has decided to
// replace, nil without a decision about this revision.
func replaced(object *v1beta1.NstanceShardGroup, group *shard.Group) *shard.Revision {
	last := reportedRevision(group)
	decided := object.Spec.Overwrites
	if object.Annotations[v1beta1.AnnotationConfirmOverwrite] != replacesValue(object, last) &&
		(decided == nil || decided.UID != last.UID || decided.Generation != last.Generation) {
		return nil
	}
	if last.UID == "" {
		last.UID = string(object.UID)
	}
	return &last
}

// replacesValue returns the value of the annotation that replaces the revision last.
func replacesValue(object *v1beta1.NstanceShardGroup, last shard.Revision) string {
	if last.UID == "" {
		return string(object.UID)
	}
	return last.String()
}

// blockedByShard reports whether no call is made because the server has a newer revision: it
// reports the revision, or has rejected an earlier call as stale.
func blockedByShard(object *v1beta1.NstanceShardGroup, group *shard.Group, rejected *rejection) bool {
	return newer(object, group) && replaced(object, group) == nil || rejected != nil && rejected.stale
}

// shardAhead returns what the server has that is newer than object, and how an administrator
// can replace it. It returns "" if calls are not blocked.
func shardAhead(object *v1beta1.NstanceShardGroup, observed observation, rejected *rejection) string {
	if !observed.synced || !blockedByShard(object, observed.group, rejected) {
		return ""
	}
	own, last := revisionOf(object), reportedRevision(observed.group)
	var message string
	switch {
	case last.UID == own.UID && last.Generation <= own.Generation:
		// The cache does not have the newer revision yet.
		return rejected.message
	case last.UID == "":
		message = fmt.Sprintf("the shard has deleted the group of this object, which has size %d of generation %d",
			object.Spec.Size, own.Generation)
	case last.UID != own.UID:
		message = fmt.Sprintf("the shard has size %d of generation %d of another object with uid %s, this object has size %d of generation %d",
			observed.group.Size, last.Generation, last.UID, object.Spec.Size, own.Generation)
	default:
		message = fmt.Sprintf("the shard has size %d of generation %d, this object has size %d of generation %d",
			observed.group.Size, last.Generation, object.Spec.Size, own.Generation)
	}
	return fmt.Sprintf("%s; the annotation %s=%s replaces what the shard has", message, v1beta1.AnnotationConfirmOverwrite, replacesValue(object, last))
}
