// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import "slices"

// Ordered is an instance in the order in which a server deletes surplus instances.
type Ordered struct {
	ID string
	// Reason is why the instance is being deleted or is to be replaced, "" if only the size
	// decides.
	Reason string
}

// Leaving returns the first n instances that a server deletes, if its order of surplus instances is
// known. The instances of removeFirst go before others, in the same order. exact is false if
// other instances may be deleted instead: the order does not have n instances, or
// removeFirst names an instance that is replaced, or that is not in the order. In these cases the
// server may delete the youngest of the others, and not the oldest, because the replacement is the
// surplus instance.
func Leaving(order []Ordered, removeFirst []string, n int) (leaving []Ordered, exact bool) {
	var named, others []Ordered
	exact = n <= len(order)
	found := map[string]bool{}
	for _, instance := range order {
		if !slices.Contains(removeFirst, instance.ID) {
			others = append(others, instance)
			continue
		}
		named = append(named, instance)
		found[instance.ID] = true
		exact = exact && (instance.Reason == "" || n <= len(named))
	}
	for _, id := range removeFirst {
		exact = exact && found[id]
	}
	leaving = slices.Concat(named, others)
	leaving = leaving[:max(min(n, len(leaving)), 0)]
	return leaving, exact
}
