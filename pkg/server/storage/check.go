// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"nstance.dev/operator/pkg/server/deadline"
)

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
	// maxKeyLength is S3's limit, in bytes.
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
