// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package names has the rules for the names of files that servers choose.
package names

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// maxLength leaves room for what is added to a name in a folder.
const maxLength = 200

// extensions are those of files that servers send.
var extensions = []string{".env", ".crt", ".pub", ".key", ".json"}

var syntax = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`)

// ValidateBase returns an error unless name is that of a file in a folder, without an
// extension that matters.
func ValidateBase(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a name must not be empty")
	case len(name) > maxLength:
		return fmt.Errorf("a name has %d characters, at most %d are allowed", len(name), maxLength)
	case !syntax.MatchString(name):
		return fmt.Errorf("%q must consist of letters, digits, dots, hyphens and underscores, and not begin with a dot", name)
	}
	return nil
}

// ValidateFile returns an error unless name is one that a server may send a file under.
func ValidateFile(name string) error {
	if err := ValidateBase(name); err != nil {
		return err
	}
	if extension := filepath.Ext(name); !slices.Contains(extensions, extension) {
		return fmt.Errorf("%q must have one of the extensions %s", name, strings.Join(extensions, " "))
	}
	return nil
}
