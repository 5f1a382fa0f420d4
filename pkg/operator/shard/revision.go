// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import "fmt"

// Revision is the state of the object that the configuration of a group comes from. A
// server that supports revisions rejects a request that is older than one that it has
// accepted (docs/protocol.md#revisions).
type Revision struct {
	// UID is that of the object. An object that was created again has another.
	UID string
	// Generation grows with each change of the object.
	Generation int64
}

// String returns UID/GENERATION.
func (r Revision) String() string { return fmt.Sprintf("%s/%d", r.UID, r.Generation) }

func equalRevision(a, b *Revision) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
