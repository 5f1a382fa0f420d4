// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Arguments that the provider takes. Both are objects of strings, which go onto
// the Node beside those of the provider itself.
const (
	argLabels      = "labels"
	argAnnotations = "annotations"
)

// validateArgs returns an error for arguments of which no Node can be made. What
// they are is known only when they are rendered.
func validateArgs(args map[string]any) error {
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
	problems = append(problems, metav1validation.ValidateLabels(argsOf(args, argLabels), path.Child(argLabels))...)
	problems = append(problems, validation.ValidateAnnotations(argsOf(args, argAnnotations), path.Child(argAnnotations))...)
	if len(problems) > 0 {
		return fmt.Errorf("arguments of the provider: %w", problems.ToAggregate())
	}
	return nil
}

// argsOf returns the strings of an argument.
func argsOf(args map[string]any, name string) map[string]string {
	values, _ := args[name].(map[string]any)
	texts := make(map[string]string, len(values))
	for key, value := range values {
		if text, ok := value.(string); ok {
			texts[key] = text
		}
	}
	return texts
}

// over overlays what was asked for with what is the provider's own.
func over(asked, own map[string]string) map[string]string {
	maps.Copy(asked, own)
	return asked
}
