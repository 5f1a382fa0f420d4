// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package storage keeps objects by key: the only durable truth of a cluster's
// shard servers. Every write says what it replaces, so that of two servers that
// write at the same time one is told.
package storage

import (
	"context"
	"errors"
	"time"
)

// Errors that callers tell apart. What a Store returns wraps them, together with
// the key.
var (
	// ErrNotFound: there is no object under the key.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the object is not what the caller took it for. Nothing was
	// written.
	ErrConflict = errors.New("changed by somebody else")
)

// Object is what is stored under a key.
type Object struct {
	Data []byte
	// ETag is another whenever Data is.
	ETag string
	// LastModified is when it was written.
	LastModified time.Time
}

// Info is an object without its data.
type Info struct {
	Key  string
	ETag string
}

// Store is an object storage. It is safe for use by several goroutines and by
// several processes. CheckKey says what a key is; no key may be that of another
// object up to a slash, as a and a/b, for one of them would be a folder. Whoever
// reads after a write has returned reads what was written, and what was written
// survives the loss of power. Nothing is written once Ended says that ctx has
// ended; an error other than ErrConflict leaves open whether it was before.
type Store interface {
	// Get returns an error that wraps ErrNotFound when there is no object.
	Get(ctx context.Context, key string) (Object, error)
	// Create writes an object that must not exist, or else the error wraps
	// ErrConflict. It returns the etag.
	Create(ctx context.Context, key string, data []byte) (etag string, err error)
	// Replace writes an object that must have the etag given, or else, and when
	// there is none, the error wraps ErrConflict. It returns the new etag.
	Replace(ctx context.Context, key string, data []byte, etag string) (newETag string, err error)
	// Delete removes an object. One that does not exist is removed already.
	Delete(ctx context.Context, key string) error
	// List returns the objects whose key begins with prefix, in the order of
	// their keys.
	List(ctx context.Context, prefix string) ([]Info, error)
}
