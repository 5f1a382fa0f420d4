// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package googlesecrets

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// maxID is the limit of the service for the id of a secret.
const maxID = 255

// encode returns a name with the characters that ids of secrets may have: letters, digits and
// hyphens stay, and each other byte becomes an underscore and two hexadecimal digits.
func encode(name string) string {
	var id strings.Builder
	for _, char := range []byte(name) {
		switch {
		case 'a' <= char && char <= 'z', 'A' <= char && char <= 'Z', '0' <= char && char <= '9', char == '-':
			id.WriteByte(char)
		default:
			fmt.Fprintf(&id, "_%02X", char)
		}
	}
	return id.String()
}

// decode returns false for an id that encode does not return.
func decode(id string) (string, bool) {
	var name strings.Builder
	for rest := id; rest != ""; {
		before, after, found := strings.Cut(rest, "_")
		name.WriteString(before)
		if !found {
			break
		}
		if len(after) < 2 {
			return "", false
		}
		char, err := hex.DecodeString(after[:2])
		if err != nil {
			return "", false
		}
		name.Write(char)
		rest = after[2:]
	}
	return name.String(), encode(name.String()) == id
}
