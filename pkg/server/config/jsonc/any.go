// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package jsonc

import (
	"encoding/json"

	"github.com/tailscale/hujson"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// AnyMap returns the object at name in the types of encoding/json. It returns nil when the member is missing or empty, so that the
// two have the same digest.
func (o *Object) AnyMap(name string) map[string]any {
	value := o.Object(name)
	if len(value.members) == 0 {
		return nil
	}
	return value.Rest()
}

// Rest returns the members that were not read yet, in the types of
// encoding/json.
func (o *Object) Rest() map[string]any {
	members := map[string]any{}
	for _, name := range o.unknown() {
		members[name] = o.readAny(o.Child(name), o.member(name))
	}
	return members
}

// readAny does what json.Unmarshal into an interface does. It also reports a name
// that is given twice, of which json.Unmarshal silently takes the last one.
func (o *Object) readAny(path *field.Path, value *hujson.Value) any {
	switch v := value.Value.(type) {
	case *hujson.Object:
		return newObject(path, value, o.errs, o.confidential).Rest()
	case *hujson.Array:
		list := make([]any, len(v.Elements))
		for i := range v.Elements {
			list[i] = o.readAny(path.Index(i), &v.Elements[i])
		}
		return list
	}
	literal := value.Value.(hujson.Literal)
	switch literal.Kind() {
	case '"':
		return literal.String()
	case 't', 'f':
		return literal.Bool()
	case '0':
		var number float64
		if json.Unmarshal(literal, &number) != nil {
			o.wrongType(path, value, "a number of at most 64 bits")
		}
		return number
	default:
		return nil
	}
}
