// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
)

// render parses and executes a template.
func render(name, text string, facts any) (string, error) {
	parsed, err := template.New(name).Parse(text)
	if err != nil {
		return "", fmt.Errorf("parse a template: %w", err)
	}
	rendered, err := execute(parsed, facts)
	if err != nil {
		return "", fmt.Errorf("render a template: %w", err)
	}
	return rendered, nil
}

// execute executes a template. A var that does not exist is an error: an instance
// that starts with "<no value>" somewhere would be worse than none.
func execute(parsed *template.Template, facts any) (string, error) {
	var rendered strings.Builder
	if err := parsed.Option("missingkey=error").Execute(&rendered, facts); err != nil {
		return "", err
	}
	return rendered.String(), nil
}

// renderArgs returns a copy of args in which every string is rendered, also in
// nested objects and arrays. Keys are not rendered.
func renderArgs(args map[string]any, facts facts) (map[string]any, error) {
	if len(args) == 0 {
		return nil, nil
	}
	rendered, err := renderAny("args", args, facts)
	if err != nil {
		return nil, err
	}
	return rendered.(map[string]any), nil
}

func renderAny(path string, value any, facts any) (any, error) {
	var err error
	switch value := value.(type) {
	case string:
		return render(path, value, facts)
	case map[string]any:
		rendered := make(map[string]any, len(value))
		// Sorted, so that the first error is always the same.
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if rendered[name], err = renderAny(path+"."+name, value[name], facts); err != nil {
				return nil, err
			}
		}
		return rendered, nil
	case []any:
		rendered := make([]any, len(value))
		for i := range value {
			if rendered[i], err = renderAny(fmt.Sprintf("%s[%d]", path, i), value[i], facts); err != nil {
				return nil, err
			}
		}
		return rendered, nil
	default:
		return value, nil
	}
}
