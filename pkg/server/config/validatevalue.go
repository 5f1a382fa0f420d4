// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/identifier"
	"nstance.dev/operator/pkg/server/instance"
)

// architectures are those that a template or an instance type may have.
var architectures = []string{instance.ArchAMD64, instance.ArchARM64}

func validateIdentifier(path *field.Path, value string) field.ErrorList {
	if err := identifier.Validate(value); err != nil {
		return field.ErrorList{field.Invalid(path, value, err.Error())}
	}
	return nil
}

func validateRequired(path *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, "must not be empty")}
	}
	return nil
}

// validateLabelValue: regions, zones and subnets become values of Node labels.
func validateLabelValue(path *field.Path, value string) field.ErrorList {
	errs := validateRequired(path, value)
	for _, problem := range validation.IsValidLabelValue(value) {
		errs = append(errs, field.Invalid(path, value, problem))
	}
	return errs
}

func validateArch(path *field.Path, value string) field.ErrorList {
	if !slices.Contains(architectures, value) {
		return field.ErrorList{field.NotSupported(path, value, architectures)}
	}
	return nil
}

// notAbsolute is what is wrong with a path that is relative.
const notAbsolute = "must be an absolute path"

// validateFile: a configuration is an object in a storage, which has no folder
// that a path could be relative to.
func validateFile(path *field.Path, value string) field.ErrorList {
	if !filepath.IsAbs(value) {
		return field.ErrorList{field.Invalid(path, value, notAbsolute)}
	}
	return nil
}

func validatePositive(path *field.Path, value time.Duration) field.ErrorList {
	if value <= 0 {
		return field.ErrorList{field.Invalid(path, value.String(), "must be greater than zero")}
	}
	return nil
}

func validateAddress(path *field.Path, value string) field.ErrorList {
	if _, _, err := splitAddress(value); err != nil {
		return field.ErrorList{field.Invalid(path, value, `must be host:port, such as "127.0.0.1:8993" or "[::]:8993"`)}
	}
	return nil
}

func splitAddress(address string) (host string, port uint64, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.ParseUint(text, 10, 16)
	return host, port, err
}
