// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package identifier has the rule for the names that Nstance shares with
// every provider: cluster, shard, tenant, group and subnet pool ids.
package identifier

import (
	"fmt"
	"regexp"
	"strings"
)

// MaxLength is the longest identifier, in characters. It is what every
// supported provider accepts in a tag or label together with Nstance's prefixes.
const MaxLength = 32

// Separator joins identifiers into object names, such as the {group}--{shard}
// of a shard group. That is why no identifier may contain it.
const Separator = "--"

// Pattern is the syntax of an identifier without its length and without the
// rule for Separator. The CRDs repeat it, so that the API server rejects an invalid
// name; the table in package identifiertest tests both.
const Pattern = `^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`

var syntax = regexp.MustCompile(Pattern)

// Validate returns nil if value is an identifier, and otherwise an error with the
// part of the rule that it violates. The caller adds the name of the field.
func Validate(value string) error {
	switch {
	case value == "":
		return fmt.Errorf("must not be empty")
	case len(value) > MaxLength:
		return fmt.Errorf("%q has %d characters, at most %d are allowed", value, len(value), MaxLength)
	case !syntax.MatchString(value):
		return fmt.Errorf("%q must consist of lower case letters, digits and hyphens, and begin and end with a letter or digit", value)
	case strings.Contains(value, Separator):
		return fmt.Errorf("%q must not contain consecutive hyphens", value)
	}
	return nil
}
