// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"encoding/json"

	"github.com/tailscale/hujson"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// anyObject returns the object at name whatever it holds, in the types of
// encoding/json; nil when it is absent or has no members, so that these two have
// the same digest.
func (o *object) anyObject(name string) map[string]any {
	value := o.object(name)
	if len(value.members) == 0 {
		return nil
	}
	return value.anyMembers()
}

// anyMembers returns the members that nobody has asked for yet.
func (o *object) anyMembers() map[string]any {
	members := map[string]any{}
	for _, name := range o.unasked() {
		members[name] = o.readAny(o.path.Child(name), o.member(name))
	}
	return members
}

// readAny does what json.Unmarshal into an interface does, and reports a name
// that is given twice, of which it would take the last one silently.
func (o *object) readAny(path *field.Path, value *hujson.Value) any {
	switch v := value.Value.(type) {
	case *hujson.Object:
		return newObject(path, value, o.errs, o.confidential).anyMembers()
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
