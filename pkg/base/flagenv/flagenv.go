// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package flagenv sets flags from environment variables.
package flagenv

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// prefix is the prefix of the variables of Nstance.
const prefix = "NSTANCE_"

// Set sets each flag that was not given from the environment variable of its name:
// --cluster-id from NSTANCE_CLUSTER_ID.
func Set(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	return SetFrom(prefix, flags, lookup)
}

// SetFrom is Set with another prefix of the variables.
func SetFrom(prefix string, flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var wrong []error
	flags.VisitAll(func(flag *pflag.Flag) {
		// These flags end the program and are not settings.
		if flag.Name == "help" || flag.Name == "version" {
			return
		}
		name := prefix + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value, ok := lookup(name)
		if !ok || flag.Changed {
			return
		}
		if err := flags.Set(flag.Name, value); err != nil {
			wrong = append(wrong, fmt.Errorf("environment variable %s: %w", name, err))
		}
	})
	return errors.Join(wrong...)
}
