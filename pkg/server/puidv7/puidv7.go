// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package puidv7 creates and parses instance ids: a UUIDv7
// (https://www.rfc-editor.org/rfc/rfc9562#section-5.7) whose text has the kind of the
// instance as a prefix.
//
// The text has 29 characters: three lower case letters, then the 16 bytes of the UUID in
// lower case Crockford base32 (https://www.crockford.com/base32.html), packed from the most
// significant bit with two zero bits at the end (docs/protocol.md#identifiers). Ids with the
// same prefix sort by creation time.
package puidv7

import (
	"encoding/base32"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Length of an id and of its prefix, in characters.
const (
	Length       = 29
	PrefixLength = 3
)

var encoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// ID is an instance id in its two parts.
type ID struct {
	// Prefix is the kind of the instance, three lower case letters.
	Prefix string
	// UUID has version 7.
	UUID uuid.UUID
}

// New returns a unique id. Within a process, ids with the same prefix sort in the
// order of their creation.
func New(prefix string) (ID, error) {
	if err := ValidatePrefix(prefix); err != nil {
		return ID{}, fmt.Errorf("create an id: %w", err)
	}
	u, err := uuid.NewV7()
	if err != nil {
		return ID{}, fmt.Errorf("create an id with prefix %q: %w", prefix, err)
	}
	return ID{Prefix: prefix, UUID: u}, nil
}

// Parse parses the text of an id. It accepts only the canonical form: no upper
// case, no look-alike letters, no other version or variant of UUID.
func Parse(text string) (ID, error) {
	id, err := parse(text)
	if err != nil {
		return ID{}, fmt.Errorf("%q is not an instance id: %w", text, err)
	}
	return id, nil
}

func parse(text string) (ID, error) {
	if len(text) != Length {
		return ID{}, fmt.Errorf("has %d characters, needs %d", len(text), Length)
	}
	id := ID{Prefix: text[:PrefixLength]}
	if err := ValidatePrefix(id.Prefix); err != nil {
		return ID{}, err
	}
	// The decoder skips line breaks and ignores the two bits of padding, so the text is
	// compared with the text of the decoded id.
	n, err := encoding.Decode(id.UUID[:], []byte(text[PrefixLength:]))
	if err != nil {
		return ID{}, fmt.Errorf("after the prefix: %w", err)
	}
	if n != len(id.UUID) || id.String() != text {
		return ID{}, errors.New("is not in canonical form")
	}
	if id.UUID.Version() != 7 || id.UUID.Variant() != uuid.RFC4122 {
		return ID{}, fmt.Errorf("has a UUID of version %d and variant %s, needs version 7 and variant %s",
			id.UUID.Version(), id.UUID.Variant(), uuid.RFC4122)
	}
	return id, nil
}

// ValidatePrefix returns an error unless prefix is a kind: three lower case letters.
func ValidatePrefix(prefix string) error {
	valid := len(prefix) == PrefixLength
	for _, c := range []byte(prefix) {
		valid = valid && 'a' <= c && c <= 'z'
	}
	if !valid {
		return fmt.Errorf("%q must be three lower case letters", prefix)
	}
	return nil
}

// String returns the text of id, which Parse parses.
func (id ID) String() string {
	return id.Prefix + encoding.EncodeToString(id.UUID[:])
}

// Time returns the creation time of id, to the millisecond.
func (id ID) Time() time.Time {
	var milliseconds int64
	for _, b := range id.UUID[:6] {
		milliseconds = milliseconds<<8 | int64(b)
	}
	return time.UnixMilli(milliseconds)
}

// StorageKey returns the form of id in keys of the object storage. The UUID is
// before the prefix, so that ids with any prefix sort by time
// (docs/server-reference.md#storage).
func (id ID) StorageKey() string {
	return id.UUID.String() + "-" + id.Prefix
}
