// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package puidv7

// StorageKey returns the form of id in keys of the object storage. The UUID is
// before the prefix, so that ids with any prefix sort by time
// (docs/server.md#storage).
func (id ID) StorageKey() string {
	return id.UUID.String() + "-" + id.Prefix
}
