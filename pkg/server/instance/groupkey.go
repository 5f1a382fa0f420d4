// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instance

import (
	"cmp"
	"strings"
)

// GroupKey identifies a group of this shard.
type GroupKey struct {
	Tenant string
	Group  string
}

// String returns {tenant}/{group}.
func (k GroupKey) String() string {
	return k.Tenant + "/" + k.Group
}

// Compare orders keys by tenant, then by group.
func (k GroupKey) Compare(other GroupKey) int {
	return cmp.Or(strings.Compare(k.Tenant, other.Tenant), strings.Compare(k.Group, other.Group))
}
