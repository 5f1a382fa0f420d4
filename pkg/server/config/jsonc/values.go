// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package jsonc

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tailscale/hujson"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// AnyMap returns the object at name in the types of encoding/json. It returns nil if the
// member is missing or empty, so that both have the same digest.
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

// readAny converts a value like json.Unmarshal into an interface, but reports duplicate
// names. json.Unmarshal silently takes the last value
// (https://pkg.go.dev/encoding/json#Unmarshal).
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

const day = 24 * time.Hour

// parseDuration reads a duration that is not negative: as Go writes it, or a
// whole number of days, such as "21d". A day has 24 hours. Days are not mixed
// with other units.
func parseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 63)
		if err != nil {
			return 0, err
		}
		if n > uint64(math.MaxInt64/day) {
			return 0, errors.New("too many days")
		}
		return time.Duration(n) * day, nil
	}
	duration, err := time.ParseDuration(text)
	if err == nil && duration < 0 {
		err = errors.New("is negative")
	}
	return duration, err
}
