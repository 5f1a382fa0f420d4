// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package secrets stores the secrets of a cluster: its keys, and what files of instances
// are made of (docs/server.md#keys).
package secrets

import "context"

// Store stores secrets by name. It is safe for concurrent use by several goroutines and
// several processes. Its errors have the name of the secret and no part of its value.
type Store interface {
	// Get returns a secret. The error wraps storage.ErrNotFound only if the store has
	// responded that there is none: a caller creates new keys then.
	Get(ctx context.Context, name string) ([]byte, error)
	// Create stores a secret of the servers, for which storage.IsReservedSecret is true. It
	// must not exist: of several calls at a time one succeeds, and Get returns its value
	// from the first time on. The error wraps storage.ErrConflict if the secret exists.
	// After another error it may exist or not.
	Create(ctx context.Context, name string, data []byte) error
	// Set stores another secret, and replaces one that exists.
	Set(ctx context.Context, name string, data []byte) error
	// Delete deletes a secret. The error wraps storage.ErrNotFound if there is none.
	Delete(ctx context.Context, name string) error
	// List returns the names of all secrets, sorted.
	List(ctx context.Context) ([]string, error)
}
