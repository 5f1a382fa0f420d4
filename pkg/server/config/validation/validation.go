// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package validation checks single values of a configuration, such as ids, addresses and
// durations. config and the options of the providers use it.
package validation

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/base/identifier"
)

// Identifier reports a value that is not an identifier (docs/protocol.md#identifiers).
func Identifier(path *field.Path, value string) field.ErrorList {
	if err := identifier.Validate(value); err != nil {
		return field.ErrorList{field.Invalid(path, value, err.Error())}
	}
	return nil
}

// Required reports an empty value.
func Required(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "must not be empty")}
	}
	return nil
}

// LabelValue reports a value that is empty or not a valid label value of a Node
// (https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set).
func LabelValue(path *field.Path, value string) field.ErrorList {
	errs := Required(path, value)
	for _, problem := range validation.IsValidLabelValue(value) {
		errs = append(errs, field.Invalid(path, value, problem))
	}
	return errs
}

// NotAbsolute is the message for a relative path.
const NotAbsolute = "must be an absolute path"

// AbsolutePath reports a relative path: a configuration is an object in a
// storage, which has no folder that a path could be relative to.
func AbsolutePath(path *field.Path, value string) field.ErrorList {
	if !filepath.IsAbs(value) {
		return field.ErrorList{field.Invalid(path, value, NotAbsolute)}
	}
	return nil
}

// Positive reports a duration of zero or less.
func Positive(path *field.Path, value time.Duration) field.ErrorList {
	if value <= 0 {
		return field.ErrorList{field.Invalid(path, value.String(), "must be greater than zero")}
	}
	return nil
}

// Address reports a value that is not host:port.
func Address(path *field.Path, value string) field.ErrorList {
	if _, _, err := SplitAddress(value); err != nil {
		return field.ErrorList{field.Invalid(path, value, `must be host:port, such as "127.0.0.1:8993" or "[::]:8993"`)}
	}
	return nil
}

// SplitAddress returns host and port of an address.
func SplitAddress(address string) (host string, port uint64, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.ParseUint(text, 10, 16)
	return host, port, err
}

// Keys lists the keys of m for a message, quoted and sorted, or "none".
func Keys[V any](m map[string]V) string {
	if len(m) == 0 {
		return "none"
	}
	names := slices.Sorted(maps.Keys(m))
	for i, name := range names {
		names[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(names, ", ")
}
