// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"errors"

	"github.com/tailscale/hujson"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// InvalidError refuses a configuration.
type InvalidError struct {
	// Mistakes has every mistake found, one a line, each with its path, its
	// value and what is allowed.
	Mistakes error
}

// Error lists the mistakes.
func (e *InvalidError) Error() string {
	return e.Mistakes.Error()
}

// Parse reads and validates a configuration. The error is an *InvalidError.
func Parse(data []byte) (*Config, error) {
	root, err := hujson.Parse(data)
	if err != nil {
		return nil, &InvalidError{Mistakes: err}
	}
	var shapeErrs field.ErrorList
	config := readConfig(newObject(nil, &root, &shapeErrs, false))
	if err := join(shapeErrs, config.validate()); err != nil {
		return nil, &InvalidError{Mistakes: err}
	}
	return config, nil
}

// join returns all errors as one. What is or lies in a field of the wrong type
// has been reported with it, so that it also breaks a rule is left out.
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

// within tells whether path, or a path that leads to it, is one of paths.
func within(path string, paths map[string]bool) bool {
	for end, char := range path {
		if (char == '.' || char == '[') && paths[path[:end]] {
			return true
		}
	}
	return paths[path]
}
