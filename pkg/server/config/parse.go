// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
)

// InvalidError rejects a configuration.
type InvalidError struct {
	// Mistakes has every mistake, one a line, each with its path, its value and
	// what is allowed.
	Mistakes error
}

// Error lists the mistakes.
func (e *InvalidError) Error() string {
	return e.Mistakes.Error()
}

// Parse reads and validates a configuration, which names one of providers. The
// error is an *InvalidError.
func Parse(data []byte, providers provider.Registry) (*Config, error) {
	var shapeErrs field.ErrorList
	root, err := jsonc.Parse(data, &shapeErrs)
	if err != nil {
		return nil, &InvalidError{Mistakes: err}
	}
	config := readConfig(root, providers)
	if err := join(shapeErrs, config.validate(providers)); err != nil {
		return nil, &InvalidError{Mistakes: err}
	}
	return config, nil
}

// join returns all errors as one. A field of the wrong type is reported as such:
// rules that it or a field in it breaks are left out.
func join(shapeErrs, ruleErrs field.ErrorList) error {
	reported := make(map[string]bool, len(shapeErrs))
	errs := make([]error, 0, len(shapeErrs)+len(ruleErrs))
	for _, err := range shapeErrs {
		reported[err.Field] = true
		errs = append(errs, err)
	}
	for _, err := range ruleErrs {
		if !within(err.Field, reported) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// within reports whether path or a parent of it is one of paths.
func within(path string, paths map[string]bool) bool {
	for end, char := range path {
		if (char == '.' || char == '[') && paths[path[:end]] {
			return true
		}
	}
	return paths[path]
}
