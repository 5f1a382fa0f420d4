// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"cmp"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/server/instance"
)

// actions bring a group to its size.
type actions struct {
	// create is how many instances to order.
	create int
	// remove are the ids of instances to end, in this order.
	remove []string
}

// plan compares the size of a group with its instances. Pending ones count, so
// that none is ordered twice; terminating ones do not, for they will go. Of too
// many the oldest go, those of equal age by id (server document).
func plan(size int32, instances []instance.Instance) actions {
	counted := slices.DeleteFunc(slices.Clone(instances), func(i instance.Instance) bool {
		return i.State == instance.Terminating
	})
	surplus := len(counted) - int(size)
	if surplus <= 0 {
		return actions{create: -surplus}
	}
	slices.SortFunc(counted, func(a, b instance.Instance) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	remove := make([]string, surplus)
	for i := range remove {
		remove[i] = counted[i].ID
	}
	return actions{remove: remove}
}
