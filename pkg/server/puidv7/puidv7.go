// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package puidv7 makes and reads instance ids: a UUIDv7 whose text carries the
// kind of the instance as a prefix.
//
// The text has 29 characters: three lower case letters, then the 16 bytes of
// the UUID in lower case Crockford base32, packed from the most significant bit
// with two zero bits at the end (server document). Ids of one prefix sort by
// the time they were made.
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
	// UUID is of version 7.
	UUID uuid.UUID
}

// New makes an id that no other call has made, nor will. Within a process, ids
// of one prefix sort in the order in which they were made.
func New(prefix string) (ID, error) {
	if err := ValidatePrefix(prefix); err != nil {
		return ID{}, fmt.Errorf("making an id: %w", err)
	}
	u, err := uuid.NewV7()
	if err != nil {
		return ID{}, fmt.Errorf("making an id with prefix %q: %w", prefix, err)
	}
	return ID{Prefix: prefix, UUID: u}, nil
}

// Parse reads an id from its text and accepts nothing but that: no upper case,
// no look-alike letters, no other version or variant of UUID.
func Parse(text string) (ID, error) {
	id, err := parse(text)
	if err != nil {
		return ID{}, fmt.Errorf("%q is no instance id: %w", text, err)
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
	// The decoder skips line breaks and ignores the two bits of padding, so
	// what it read must give the same text again.
	n, err := encoding.Decode(id.UUID[:], []byte(text[PrefixLength:]))
	if err != nil {
		return ID{}, fmt.Errorf("after the prefix: %w", err)
	}
	if n != len(id.UUID) || id.String() != text {
		return ID{}, errors.New("is not in canonical form")
	}
	if id.UUID.Version() != 7 || id.UUID.Variant() != uuid.RFC4122 {
		return ID{}, fmt.Errorf("holds a UUID of version %d and variant %s, needs version 7 and variant %s",
			id.UUID.Version(), id.UUID.Variant(), uuid.RFC4122)
	}
	return id, nil
}

// ValidatePrefix returns nil when prefix is a kind: three lower case letters.
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

// String returns the text of id, which Parse reads.
func (id ID) String() string {
	return id.Prefix + encoding.EncodeToString(id.UUID[:])
}

// Time returns when id was made, to the millisecond.
func (id ID) Time() time.Time {
	var milliseconds int64
	for _, b := range id.UUID[:6] {
		milliseconds = milliseconds<<8 | int64(b)
	}
	return time.UnixMilli(milliseconds)
}
