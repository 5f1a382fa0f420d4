// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secrets

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"nstance.dev/operator/pkg/server/config"
)

// encodedKeySize is the size of a key in base64.
var encodedKeySize = base64.StdEncoding.EncodedLen(keySize)

// ReadKey returns the key at source, an environment variable or a file: 32 raw bytes or
// their standard base64, which has 44 characters. The error never contains a part of the
// value. Package backend reads keys from services too.
func ReadKey(source config.KeySource) ([]byte, error) {
	switch {
	case source.Env != "":
		value, found := os.LookupEnv(source.Env)
		if !found {
			return nil, fmt.Errorf("read the key for secrets: environment variable %s is not set", source.Env)
		}
		key, err := decodeKey([]byte(value))
		if err != nil {
			return nil, fmt.Errorf("read the key for secrets from environment variable %s: %w", source.Env, err)
		}
		return key, nil
	case source.File != "":
		value, err := os.ReadFile(source.File)
		if err != nil {
			return nil, fmt.Errorf("read the key for secrets: %w", err)
		}
		key, err := ParseKey(value)
		if err != nil {
			return nil, fmt.Errorf("read the key for secrets from %s: %w", source.File, err)
		}
		return key, nil
	default:
		return nil, errors.New("read the key for secrets: neither an environment variable nor a file is named")
	}
}

// ParseKey returns the key that the content of a file or of a secret is. A line break at
// its end is removed if the size is right without it. The error never contains a part of
// the value.
func ParseKey(value []byte) ([]byte, error) { return decodeKey(trimLineBreak(value)) }

// trimLineBreak removes the line break at the end of a value. It does not change a
// value with the right size, since the last of 32 random bytes may look like a line
// break.
func trimLineBreak(value []byte) []byte {
	for _, lineBreak := range []string{"", "\n", "\r\n"} {
		key, found := bytes.CutSuffix(value, []byte(lineBreak))
		if found && (len(key) == keySize || len(key) == encodedKeySize) {
			return key
		}
	}
	return value
}

func decodeKey(value []byte) ([]byte, error) {
	switch len(value) {
	case keySize:
		return value, nil
	case encodedKeySize:
		key, err := base64.StdEncoding.Strict().DecodeString(string(value))
		if err != nil {
			return nil, fmt.Errorf("the %d characters are not base64: %w", len(value), err)
		}
		return key, checkSize(key)
	default:
		return nil, fmt.Errorf("it has %d bytes, must be %d bytes or their base64 of %d characters",
			len(value), keySize, encodedKeySize)
	}
}

func checkSize(key []byte) error {
	if len(key) != keySize {
		return fmt.Errorf("it has %d bytes, must be %d", len(key), keySize)
	}
	return nil
}
