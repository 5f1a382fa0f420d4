// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package puidv7

// StorageKey returns the form of id that is used in keys of the object storage,
// UUID before prefix, so that ids of all prefixes sort by time (server document).
func (id ID) StorageKey() string {
	return id.UUID.String() + "-" + id.Prefix
}
