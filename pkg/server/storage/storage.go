// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package storage stores objects by key: the only durable state of a cluster's
// shard servers. Every write names the version that it replaces, so that one of
// two concurrent writers is rejected.
package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"nstance.dev/operator/pkg/server/deadline"
)

// Errors that callers distinguish. The errors of a Store wrap them and have the
// key in their text.
var (
	// ErrNotFound means that there is no object with the key.
	ErrNotFound = errors.New("not found")
	// ErrConflict means that the object has another version than the caller
	// expects. Nothing was written.
	ErrConflict = errors.New("changed by another writer")
	// ErrUnchanged means that the object has the version that the caller already has.
	ErrUnchanged = errors.New("unchanged")
)

// Object is the content and version of an object.
type Object struct {
	Data []byte
	// ETag changes whenever Data changes.
	ETag string
	// LastModified is the time of the last write, or zero if the storage does not report it.
	LastModified time.Time
}

// Info is an object without its data.
type Info struct {
	Key  string
	ETag string
}

// Store is an object storage. It is safe for concurrent use by several goroutines and several
// processes. CheckKey defines the valid keys. No key may be a parent of another, as a is of
// a/b, since one of the two would be a folder. A read that begins after a write has returned
// returns the written data, which survives a power failure. Nothing is written after
// deadline.Check returns an error for ctx. After an error other than ErrConflict the object
// may or may not have been written.
type Store interface {
	// Get returns an object. The error wraps ErrNotFound if it does not exist.
	Get(ctx context.Context, key string) (Object, error)
	// Create writes an object that must not exist and returns its etag. The error
	// wraps ErrConflict if the object exists.
	Create(ctx context.Context, key string, data []byte) (etag string, err error)
	// Replace writes an object that must have the given etag and returns its new
	// etag. The error wraps ErrConflict if the object has another etag or does not
	// exist.
	Replace(ctx context.Context, key string, data []byte, etag string) (newETag string, err error)
	// Delete deletes an object. It succeeds if the object does not exist.
	Delete(ctx context.Context, key string) error
	// List returns the objects whose key begins with prefix, sorted by key.
	List(ctx context.Context, prefix string) ([]Info, error)
}

// ChangeReader is a Store whose service sends an object only if it has changed.
type ChangeReader interface {
	Store
	// GetChanged is Get for a caller that has a version of the object. The error wraps ErrUnchanged if
	// it is the current version.
	GetChanged(ctx context.Context, key, etag string) (Object, error)
}

// GetChanged is Get for a caller that has a version of the object, "" for none. The error wraps
// ErrUnchanged if it is the current version. Not every store saves the transfer.
func GetChanged(ctx context.Context, store Store, key, etag string) (Object, error) {
	if reader, ok := store.(ChangeReader); ok && etag != "" {
		return reader.GetChanged(ctx, key, etag)
	}
	object, err := store.Get(ctx, key)
	if err == nil && etag != "" && object.ETag == etag {
		return Object{}, fmt.Errorf("read %s: %w", key, ErrUnchanged)
	}
	return object, err
}

// CheckCall returns an error if the key of a call is invalid, or if ctx is done.
func CheckCall(ctx context.Context, key string) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	return deadline.Check(ctx)
}

// CheckListCall is CheckCall for the prefix of a List.
func CheckListCall(ctx context.Context, prefix string) error {
	if err := CheckPrefix(prefix); err != nil {
		return err
	}
	return deadline.Check(ctx)
}

const (
	// maxKeyLength is S3's limit, in bytes
	// (https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html).
	maxKeyLength = 1024
	// maxPartLength is the limit of common file systems, in bytes.
	maxPartLength = 255
)

// CheckKey returns an error that names the key if it is invalid. A valid key is
// UTF-8 with printable characters and spaces only, and has at most 1024 bytes. It
// consists of parts of at most 255 bytes, separated by slashes. No part is empty or
// begins with a dot: such files are hidden, and belong to the storage or to an
// editor.
func CheckKey(key string) error {
	switch {
	case len(key) > maxKeyLength:
		return fmt.Errorf("storage key %q has %d bytes, at most %d are allowed", key, len(key), maxKeyLength)
	case !utf8.ValidString(key):
		return fmt.Errorf("storage key %q is not UTF-8", key)
	case strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("storage key %q has a character that cannot be printed", key)
	}
	for part := range strings.SplitSeq(key, "/") {
		switch {
		case part == "":
			return fmt.Errorf("storage key %q has an empty part", key)
		case part[0] == '.':
			return fmt.Errorf("storage key %q has a part that begins with a dot", key)
		case len(part) > maxPartLength:
			return fmt.Errorf("storage key %q has a part of %d bytes, at most %d are allowed", key, len(part), maxPartLength)
		}
	}
	return nil
}

// CheckPrefix returns an error that names the prefix if no valid key begins with
// it. All keys begin with the empty prefix.
func CheckPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	if err := CheckKey(strings.TrimSuffix(prefix, "/")); err != nil {
		return fmt.Errorf("prefix %q: %w", prefix, err)
	}
	return nil
}
