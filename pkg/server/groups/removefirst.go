// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// maxRemoveFirst is how many ids may be named to go first. It is as many as a
	// pool of Cluster API has provider ids at most (CAPI contract).
	maxRemoveFirst = 10_000
	// maxIDLength is more than any id has.
	maxIDLength = 64
)

// validateRemoveFirst keeps what is stored of a group within bounds. An id need
// not be one of the group's: its instance may have gone while the request was on
// its way. Of many that are wrong the first is told.
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
