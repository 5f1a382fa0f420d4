// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Arguments of the provider. Both are objects of strings. Their members become labels and
// annotations of the Node.
const (
	argLabels      = "labels"
	argAnnotations = "annotations"
)

// ownDomain is the prefix of the labels and annotations by which the provider
// identifies its Nodes.
const ownDomain = "nstance.dev/"

// ValidateArgs validates arguments before they are rendered: it ignores text with templates.
func (o *Options) ValidateArgs(path *field.Path, args map[string]any) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(args)) {
		path := path.Child(name)
		if name != argLabels && name != argAnnotations {
			errs = append(errs, field.NotSupported(path, name, []string{argAnnotations, argLabels}))
			continue
		}
		members, ok := args[name].(map[string]any)
		if !ok {
			errs = append(errs, field.TypeInvalid(path, args[name], "must be an object of strings"))
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(members)) {
			errs = append(errs, validateNodeMetadata(path.Child(key), name, key, members[key])...)
		}
	}
	return errs
}

// validateNodeMetadata checks one label or annotation of a Node.
func validateNodeMetadata(path *field.Path, arg, key string, value any) field.ErrorList {
	var errs field.ErrorList
	qualified := key
	if arg == argAnnotations {
		// The API server compares the lower-case key, too
		// (https://pkg.go.dev/k8s.io/apimachinery/pkg/api/validation#ValidateAnnotations).
		qualified = strings.ToLower(key)
	}
	for _, problem := range validation.IsQualifiedName(qualified) {
		errs = append(errs, field.Invalid(path, key, problem))
	}
	if strings.HasPrefix(key, ownDomain) {
		errs = append(errs, field.Forbidden(path, ownDomain+" is the server's own"))
	}
	text, ok := value.(string)
	if !ok {
		return append(errs, field.TypeInvalid(path, value, "must be a string"))
	}
	// The result of a template is not known yet.
	if arg == argLabels && !strings.Contains(text, "{{") {
		for _, problem := range validation.IsValidLabelValue(text) {
			errs = append(errs, field.Invalid(path, text, problem))
		}
	}
	return errs
}

// validateRendered returns an error for rendered arguments that no Node can have.
func validateRendered(args map[string]any) error {
	path := field.NewPath("args")
	var problems field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if name != argLabels && name != argAnnotations {
			problems = append(problems, field.NotSupported(path, name, []string{argAnnotations, argLabels}))
			continue
		}
		values, ok := args[name].(map[string]any)
		if !ok {
			problems = append(problems, field.TypeInvalid(path.Child(name), args[name], "must be an object"))
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if _, ok := values[key].(string); !ok {
				problems = append(problems, field.TypeInvalid(path.Child(name).Key(key), values[key], "must be a string"))
			}
		}
	}
	problems = append(problems, metav1validation.ValidateLabels(stringsOf(args, argLabels), path.Child(argLabels))...)
	problems = append(problems, apivalidation.ValidateAnnotations(stringsOf(args, argAnnotations), path.Child(argAnnotations))...)
	if len(problems) > 0 {
		return fmt.Errorf("arguments of the provider: %w", problems.ToAggregate())
	}
	return nil
}

// stringsOf returns the strings of an argument.
func stringsOf(args map[string]any, name string) map[string]string {
	values, _ := args[name].(map[string]any)
	texts := make(map[string]string, len(values))
	for key, value := range values {
		if text, ok := value.(string); ok {
			texts[key] = text
		}
	}
	return texts
}

// overlay adds the provider's own values to the values of an argument, and replaces values
// of the same name.
func overlay(values, own map[string]string) map[string]string {
	maps.Copy(values, own)
	return values
}
