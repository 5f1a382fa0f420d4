// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tailscale/hujson"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// object reads the members of one JSON object. Unlike encoding/json it goes on
// after an error, so that all mistakes of a file are reported together. It
// remembers which members were asked for: finish reports the others.
type object struct {
	path    *field.Path
	members map[string]*hujson.Value
	asked   []string
	errs    *field.ErrorList
	// mistyped is true when there is something else in place of the object.
	mistyped bool
	// confidential is true when no error may show a value, be it that of the
	// object or of a member.
	confidential bool
}

// newObject reads value, which may be nil for an absent member. What is
// confidential is so with all that is in it.
func newObject(path *field.Path, value *hujson.Value, errs *field.ErrorList, confidential bool) *object {
	o := &object{path: path, members: map[string]*hujson.Value{}, errs: errs, confidential: confidential}
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
		if _, twice := o.members[name]; twice {
			*errs = append(*errs, field.Duplicate(path.Child(name), name))
			continue
		}
		o.members[name] = &composite.Members[i].Value
	}
	return o
}

// member returns nil when the object has no member of that name.
func (o *object) member(name string) *hujson.Value {
	o.asked = append(o.asked, name)
	return o.members[name]
}

// object returns the object at name, an empty one when absent.
func (o *object) object(name string) *object {
	return newObject(o.path.Child(name), o.member(name), o.errs, o.confidential)
}

// names returns the names of all members, sorted so that errors come in the
// same order each time.
func (o *object) names() []string {
	return slices.Sorted(maps.Keys(o.members))
}

// each calls read with every member of the object, which must be objects
// themselves, in the order of their names.
func (o *object) each(read func(name string, value *object)) {
	for _, name := range o.names() {
		value := o.object(name)
		read(name, value)
		value.finish()
	}
}

// text returns "" when absent.
func (o *object) text(name string) string {
	return o.readText(o.path.Child(name), o.member(name))
}

func (o *object) readText(path *field.Path, value *hujson.Value) string {
	if value == nil {
		return ""
	}
	literal, ok := value.Value.(hujson.Literal)
	if !ok || literal.Kind() != '"' {
		o.wrongType(path, value, "a string")
		return ""
	}
	return literal.String()
}

// boolean returns whenAbsent when absent.
func (o *object) boolean(name string, whenAbsent bool) bool {
	value := o.member(name)
	if value == nil {
		return whenAbsent
	}
	literal, ok := value.Value.(hujson.Literal)
	if !ok || literal.Kind() != 't' && literal.Kind() != 'f' {
		o.wrongType(o.path.Child(name), value, "true or false")
		return whenAbsent
	}
	return literal.Bool()
}

// duration returns whenAbsent when absent.
func (o *object) duration(name string, whenAbsent time.Duration) time.Duration {
	if duration := o.optionalDuration(name); duration != nil {
		return *duration
	}
	return whenAbsent
}

// optionalDuration returns nil when absent: a duration that is not set is
// another thing than one of zero, which turns off what it times.
func (o *object) optionalDuration(name string) *time.Duration {
	value := o.member(name)
	if value == nil {
		return nil
	}
	path := o.path.Child(name)
	literal, ok := value.Value.(hujson.Literal)
	if !ok || literal.Kind() != '"' {
		o.wrongType(path, value, "a string")
		return nil
	}
	duration, err := parseDuration(literal.String())
	if err != nil {
		*o.errs = append(*o.errs, field.Invalid(path, literal.String(),
			`must be a duration that is not negative, such as "1.5s", "2m" or "21d"`))
		return nil
	}
	return &duration
}

// integer returns nil when absent.
func (o *object) integer(name string) *int32 {
	value := o.member(name)
	if value == nil {
		return nil
	}
	var number int32
	literal, ok := value.Value.(hujson.Literal)
	if !ok || literal.Kind() != '0' || json.Unmarshal(literal, &number) != nil {
		o.wrongType(o.path.Child(name), value, "an integer of at most 32 bits")
		return nil
	}
	return &number
}

// texts returns a list of strings, nil when absent.
func (o *object) texts(name string) []string {
	elements := o.list(name, "a list of strings")
	if elements == nil {
		return nil
	}
	list := make([]string, len(elements))
	for i := range elements {
		list[i] = o.readText(o.path.Child(name).Index(i), &elements[i])
	}
	return list
}

// objects returns a list of objects, nil when absent.
func (o *object) objects(name string) []*object {
	elements := o.list(name, "a list of objects")
	var list []*object
	for i := range elements {
		list = append(list, newObject(o.path.Child(name).Index(i), &elements[i], o.errs, o.confidential))
	}
	return list
}

// list returns nil when absent.
func (o *object) list(name, want string) []hujson.Value {
	value := o.member(name)
	if value == nil {
		return nil
	}
	array, ok := value.Value.(*hujson.Array)
	if !ok {
		o.wrongType(o.path.Child(name), value, want)
		return nil
	}
	return array.Elements
}

// dictionary returns an object of strings, nil when absent or empty.
func (o *object) dictionary(name string) map[string]string {
	value := o.object(name)
	if len(value.members) == 0 {
		return nil
	}
	dictionary := make(map[string]string, len(value.members))
	for _, key := range value.names() {
		dictionary[key] = value.text(key)
	}
	return dictionary
}

// oneOf reports an object that has none or several of the members named. One
// that is an empty text counts as absent.
func (o *object) oneOf(names ...string) {
	var found []string
	for _, name := range names {
		if value := o.members[name]; value != nil && !isEmptyText(value) {
			found = append(found, name)
		}
	}
	want := "must have exactly one of " + strings.Join(names, ", ")
	switch {
	case o.mistyped || len(found) == 1:
	case len(found) == 0:
		*o.errs = append(*o.errs, field.Required(o.path, want))
	default:
		*o.errs = append(*o.errs, field.Invalid(o.path, found, want))
	}
}

func isEmptyText(value *hujson.Value) bool {
	literal, ok := value.Value.(hujson.Literal)
	return ok && literal.Kind() == '"' && literal.String() == ""
}

// finish reports the members that nobody asked for.
func (o *object) finish() {
	for _, name := range o.unasked() {
		*o.errs = append(*o.errs, field.Invalid(o.path.Child(name), o.shown(o.members[name]),
			"unknown key, allowed are "+strings.Join(slices.Sorted(slices.Values(o.asked)), ", ")))
	}
}

// unasked returns the names of the members that nobody asked for, sorted.
func (o *object) unasked() []string {
	return slices.DeleteFunc(o.names(), func(name string) bool { return slices.Contains(o.asked, name) })
}

func (o *object) wrongType(path *field.Path, value *hujson.Value, want string) {
	if path == nil {
		path = field.NewPath("(root)")
	}
	*o.errs = append(*o.errs, field.TypeInvalid(path, o.shown(value), "must be "+want))
}

// shown returns what an error shows of value: all of a short one, as the file
// has it but in one line, and the beginning of a long one; nothing of one that is
// confidential.
func (o *object) shown(value *hujson.Value) any {
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
