// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxRemoveFirst is the maximum number of ids. It equals the maximum number
	// of provider ids in a Cluster API machine pool
	// (docs/capi.md#provider-ids).
	maxRemoveFirst = 10_000
	// maxIDLength is longer than any instance id, and than the uid of any Kubernetes
	// object.
	maxIDLength = 64
)

// validateRemoveFirst limits what is stored of a group. The ids need not exist
// in the group: an instance may have been deleted since the request was sent.
// Only the first invalid id is reported.
func validateRemoveFirst(path *field.Path, ids []string) field.ErrorList {
	if len(ids) > maxRemoveFirst {
		return field.ErrorList{field.TooMany(path, len(ids), maxRemoveFirst)}
	}
	seen := make(map[string]struct{}, len(ids))
	for n, id := range ids {
		if id == "" {
			return field.ErrorList{field.Required(path.Index(n), "must be the id of an instance")}
		}
		if len(id) > maxIDLength {
			return field.ErrorList{field.Invalid(path.Index(n), id[:maxIDLength]+"...", fmt.Sprintf("must have at most %d characters", maxIDLength))}
		}
		if _, twice := seen[id]; twice {
			return field.ErrorList{field.Duplicate(path.Index(n), id)}
		}
		seen[id] = struct{}{}
	}
	return nil
}
