// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package jsonc reads JSON with comments and trailing commas. Unlike
// encoding/json it continues after an error, so that all mistakes of a text are
// reported together, each with its path.
package jsonc

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tailscale/hujson"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Object reads the members of one JSON object. It remembers which members were
// read: Finish reports the others as unknown.
type Object struct {
	path    *field.Path
	members map[string]*hujson.Value
	// known are the names that a caller has read, whether or not they exist.
	known []string
	errs  *field.ErrorList
	// mistyped is true when the value is not an object.
	mistyped bool
	// confidential is true when no error may show the value of the object or of a
	// member.
	confidential bool
}

// Parse returns the object in data. Mistakes that the object finds later
// are added to errs.
func Parse(data []byte, errs *field.ErrorList) (*Object, error) {
	root, err := hujson.Parse(data)
	if err != nil {
		return nil, err
	}
	return newObject(nil, &root, errs, false), nil
}

// ParseConfidential is like Parse, but no error shows a value of the object.
func ParseConfidential(data []byte, errs *field.ErrorList) (*Object, error) {
	root, err := hujson.Parse(data)
	if err != nil {
		return nil, errors.New("is not JSON")
	}
	return newObject(nil, &root, errs, true), nil
}

// newObject reads value, which is nil for a missing member. All members of a
// confidential object are confidential.
func newObject(path *field.Path, value *hujson.Value, errs *field.ErrorList, confidential bool) *Object {
	o := &Object{path: path, members: map[string]*hujson.Value{}, errs: errs, confidential: confidential}
	if value == nil {
		return o
	}
	composite, ok := value.Value.(*hujson.Object)
	if !ok {
		o.mistyped = true
		o.wrongType(path, value, "an object")
		return o
	}
	for i := range composite.Members {
		name := composite.Members[i].Name.Value.(hujson.Literal).String()
		if _, duplicate := o.members[name]; duplicate {
			o.Report(field.Duplicate(o.Child(name), name))
			continue
		}
		o.members[name] = &composite.Members[i].Value
	}
	return o
}

// Path returns where the object is in the text, nil for the root.
func (o *Object) Path() *field.Path { return o.path }

// Child returns the path of a member.
func (o *Object) Child(name string) *field.Path { return o.path.Child(name) }

// Report adds a mistake to the mistakes of the text.
func (o *Object) Report(err *field.Error) { *o.errs = append(*o.errs, err) }

// Names returns the names of all members, sorted so that errors have the same
// order each time.
func (o *Object) Names() []string {
	return slices.Sorted(maps.Keys(o.members))
}

// Has reports whether the object has a member of that name.
func (o *Object) Has(name string) bool { return o.member(name) != nil }

// IsString reports whether the member is a string.
func (o *Object) IsString(name string) bool {
	value := o.member(name)
	return value != nil && isString(value)
}

// IsObject reports whether the member is an object.
func (o *Object) IsObject(name string) bool {
	value := o.member(name)
	if value == nil {
		return false
	}
	_, ok := value.Value.(*hujson.Object)
	return ok
}

// member returns nil when the object has no member of that name.
func (o *Object) member(name string) *hujson.Value {
	if !slices.Contains(o.known, name) {
		o.known = append(o.known, name)
	}
	return o.members[name]
}

// Object returns the object at name, an empty object if it is missing.
func (o *Object) Object(name string) *Object {
	return newObject(o.Child(name), o.member(name), o.errs, o.confidential)
}

// ConfidentialObject returns the object at name. No error shows a value of it.
func (o *Object) ConfidentialObject(name string) *Object {
	return newObject(o.Child(name), o.member(name), o.errs, true)
}

// Each calls read with every member, which must be an object, in the order of
// the names.
func (o *Object) Each(read func(name string, value *Object)) {
	for _, name := range o.Names() {
		value := o.Object(name)
		read(name, value)
		value.Finish()
	}
}

// String returns "" when the member is missing.
func (o *Object) String(name string) string {
	return o.readString(o.Child(name), o.member(name))
}

func (o *Object) readString(path *field.Path, value *hujson.Value) string {
	if value == nil {
		return ""
	}
	if !isString(value) {
		o.wrongType(path, value, "a string")
		return ""
	}
	return value.Value.(hujson.Literal).String()
}

func isString(value *hujson.Value) bool {
	literal, ok := value.Value.(hujson.Literal)
	return ok && literal.Kind() == '"'
}

// Bool returns fallback when the member is missing.
func (o *Object) Bool(name string, fallback bool) bool {
	value := o.member(name)
	if value == nil {
		return fallback
	}
	literal, ok := value.Value.(hujson.Literal)
	if !ok || literal.Kind() != 't' && literal.Kind() != 'f' {
		o.wrongType(o.Child(name), value, "true or false")
		return fallback
	}
	return literal.Bool()
}

// Duration returns fallback when the member is missing.
func (o *Object) Duration(name string, fallback time.Duration) time.Duration {
	if duration := o.OptionalDuration(name); duration != nil {
		return *duration
	}
	return fallback
}

// OptionalDuration returns nil if the member is missing: an unset duration differs from zero,
// which turns a timeout off.
func (o *Object) OptionalDuration(name string) *time.Duration {
	value := o.member(name)
	if value == nil {
		return nil
	}
	if !isString(value) {
		o.wrongType(o.Child(name), value, "a string")
		return nil
	}
	text := value.Value.(hujson.Literal).String()
	duration, err := parseDuration(text)
	if err != nil {
		o.Report(field.Invalid(o.Child(name), text,
			`must be a duration that is not negative, such as "1.5s", "2m" or "21d"`))
		return nil
	}
	return &duration
}

// Int32 returns nil when the member is missing.
func (o *Object) Int32(name string) *int32 {
	value := o.member(name)
	if value == nil {
		return nil
	}
	var number int32
	literal, ok := value.Value.(hujson.Literal)
	if !ok || literal.Kind() != '0' || json.Unmarshal(literal, &number) != nil {
		o.wrongType(o.Child(name), value, "an integer of at most 32 bits")
		return nil
	}
	return &number
}

// Strings returns a list of strings, nil when the member is missing, and not for an empty list.
func (o *Object) Strings(name string) []string {
	elements := o.list(name, "a list of strings")
	if elements == nil {
		return nil
	}
	list := make([]string, len(elements))
	for i := range elements {
		list[i] = o.readString(o.Child(name).Index(i), &elements[i])
	}
	return list
}

// Objects returns a list of objects, nil when the member is missing.
func (o *Object) Objects(name string) []*Object {
	elements := o.list(name, "a list of objects")
	var list []*Object
	for i := range elements {
		list = append(list, newObject(o.Child(name).Index(i), &elements[i], o.errs, o.confidential))
	}
	return list
}

// list returns nil when the member is missing, and not for an empty list.
func (o *Object) list(name, want string) []hujson.Value {
	value := o.member(name)
	if value == nil {
		return nil
	}
	array, ok := value.Value.(*hujson.Array)
	if !ok {
		o.wrongType(o.Child(name), value, want)
		return nil
	}
	return append([]hujson.Value{}, array.Elements...)
}

// StringMap returns an object of strings, nil when the member is missing or
// empty.
func (o *Object) StringMap(name string) map[string]string {
	value := o.Object(name)
	if len(value.members) == 0 {
		return nil
	}
	values := make(map[string]string, len(value.members))
	for _, key := range value.Names() {
		values[key] = value.String(key)
	}
	return values
}

// ExactlyOneOf reports an object that does not have exactly one of the named members. A
// member that is an empty string counts as missing.
func (o *Object) ExactlyOneOf(names ...string) {
	var found []string
	for _, name := range names {
		value := o.members[name]
		if value == nil || isString(value) && value.Value.(hujson.Literal).String() == "" {
			continue
		}
		found = append(found, name)
	}
	want := "must have exactly one of " + strings.Join(names, ", ")
	switch {
	case o.mistyped || len(found) == 1:
	case len(found) == 0:
		o.Report(field.Required(o.path, want))
	default:
		o.Report(field.Invalid(o.path, found, want))
	}
}

// Finish reports the members that were not read.
func (o *Object) Finish() {
	for _, name := range o.unknown() {
		o.Report(field.Invalid(o.Child(name), o.display(o.members[name]),
			"unknown key, allowed are "+strings.Join(slices.Sorted(slices.Values(o.known)), ", ")))
	}
}

// unknown returns the names of the members that were not read, sorted.
func (o *Object) unknown() []string {
	return slices.DeleteFunc(o.Names(), func(name string) bool { return slices.Contains(o.known, name) })
}

func (o *Object) wrongType(path *field.Path, value *hujson.Value, want string) {
	if path == nil {
		path = field.NewPath("(root)")
	}
	o.Report(field.TypeInvalid(path, o.display(value), "must be "+want))
}

// display returns the part of value that an error shows: a short value as it is written but
// in one line, the beginning of a long value, and nothing of a confidential value.
func (o *Object) display(value *hujson.Value) any {
	if o.confidential {
		return field.OmitValueType{}
	}
	clone := value.Clone()
	clone.Minimize()
	text := clone.String()
	const enough = 80
	if runes := []rune(text); len(runes) > enough {
		return string(runes[:enough]) + "…"
	}
	return json.RawMessage(text)
}
