// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// reader reads the members of an object of arguments and collects errors. It does not check
// text that is rendered later.
type reader struct {
	path *field.Path
	// members is nil if the object is missing.
	members map[string]any
	known   []string
	errs    *field.ErrorList
}

// isTemplate reports whether a text is unknown until it is rendered.
func isTemplate(text string) bool { return strings.Contains(text, "{{") }

func (r *reader) report(err *field.Error) { *r.errs = append(*r.errs, err) }

// get returns a member, or nil if it is missing.
func (r *reader) get(name string) any {
	r.known = append(r.known, name)
	return r.members[name]
}

// finish reports members that were not read.
func (r *reader) finish() {
	slices.Sort(r.known)
	for _, name := range slices.Sorted(maps.Keys(r.members)) {
		if !slices.Contains(r.known, name) {
			r.report(field.NotSupported(r.path.Child(name), name, r.known))
		}
	}
}

func (r *reader) text(name string) string {
	value := r.get(name)
	text, ok := value.(string)
	if value != nil && !ok {
		r.report(field.TypeInvalid(r.path.Child(name), value, "must be a string"))
	}
	return text
}

// match returns a text that is empty or matches a pattern.
func (r *reader) match(name string, pattern *regexp.Regexp, what string) string {
	text := r.text(name)
	r.check(r.path.Child(name), text, pattern, what)
	return text
}

func (r *reader) check(path *field.Path, text string, pattern *regexp.Regexp, what string) {
	if text != "" && !isTemplate(text) && !pattern.MatchString(text) {
		r.report(field.Invalid(path, text, "must be "+what))
	}
}

// oneOf returns a text that is empty or allowed.
func (r *reader) oneOf(name string, allowed ...string) string {
	text := r.text(name)
	if text != "" && !isTemplate(text) && !slices.Contains(allowed, text) {
		r.report(field.NotSupported(r.path.Child(name), text, allowed))
	}
	return text
}

// matches returns a list of texts that match a pattern.
func (r *reader) matches(name string, pattern *regexp.Regexp, what string) []string {
	texts := r.list(r.path.Child(name), r.get(name))
	for n, text := range texts {
		r.check(r.path.Child(name).Index(n), text, pattern, what)
	}
	return texts
}

func (r *reader) list(path *field.Path, value any) []string {
	items, ok := value.([]any)
	if value != nil && !ok {
		r.report(field.TypeInvalid(path, value, "must be a list of strings"))
	}
	var texts []string
	for n, item := range items {
		text, ok := item.(string)
		if !ok || text == "" {
			r.report(field.TypeInvalid(path.Index(n), item, "must be a string that is not empty"))
			continue
		}
		texts = append(texts, text)
	}
	return texts
}

// number returns an integer between two limits, or zero if the member is missing.
func (r *reader) number(name string, least, most int32) int32 {
	value := r.get(name)
	if value == nil {
		return 0
	}
	number, ok := value.(float64)
	if !ok || number != float64(int32(number)) || number < float64(least) || number > float64(most) {
		r.report(field.Invalid(r.path.Child(name), value, fmt.Sprintf("must be a whole number between %d and %d", least, most)))
		return 0
	}
	return int32(number)
}

func (r *reader) boolean(name string) *bool {
	value := r.get(name)
	if value == nil {
		return nil
	}
	is, ok := value.(bool)
	if !ok {
		r.report(field.TypeInvalid(r.path.Child(name), value, "must be true or false"))
	}
	return &is
}

func (r *reader) object(name string) *reader {
	value := r.get(name)
	members, ok := value.(map[string]any)
	if value != nil && !ok {
		r.report(field.TypeInvalid(r.path.Child(name), value, "must be an object"))
	}
	return &reader{path: r.path.Child(name), members: members, errs: r.errs}
}

func (r *reader) texts(name string) map[string]string {
	object := r.object(name)
	texts := make(map[string]string, len(object.members))
	for _, key := range slices.Sorted(maps.Keys(object.members)) {
		texts[key] = object.text(key)
	}
	return texts
}

// filters returns filters of images. The value of a filter is a text or a list of texts.
func (r *reader) filters(name string) map[string][]string {
	object := r.object(name)
	filters := make(map[string][]string, len(object.members))
	for _, key := range slices.Sorted(maps.Keys(object.members)) {
		path := object.path.Key(key)
		if !filterName.MatchString(key) {
			r.report(field.Invalid(path, key, "must be the name of a filter, such as name or tag:purpose"))
		}
		if text, ok := object.members[key].(string); ok && text != "" {
			filters[key] = []string{text}
		} else {
			filters[key] = r.list(path, object.members[key])
		}
		if len(filters[key]) == 0 {
			r.report(field.Required(path, "must have a value"))
		}
	}
	return filters
}
