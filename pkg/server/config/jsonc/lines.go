// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package jsonc

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"
)

// Lines finds the lines of values in a text.
type Lines struct {
	data []byte
	root hujson.Value
}

// NewLines returns the lines of a text. It returns nil if the text is not JSON with comments.
func NewLines(data []byte) *Lines {
	root, err := hujson.Parse(data)
	if err != nil {
		return nil
	}
	return &Lines{data, root}
}

// Of returns the line, from 1, of the value at a path in the form of field.Path. If there is no such
// value, it returns the line of the nearest value around the place.
func (l *Lines) Of(path string) int {
	offset := l.root.StartOffset
	for value := &l.root; path != "" && value != nil; {
		var at int
		if value, at, path = next(value, path); value != nil {
			offset = at
		}
	}
	return 1 + bytes.Count(l.data[:offset], []byte("\n"))
}

// next returns the value of the first part of a path in an object or a list, where it begins, and
// the rest of the path. It returns nil if there is no such value.
func next(in *hujson.Value, path string) (value *hujson.Value, offset int, rest string) {
	switch composite := in.Value.(type) {
	case *hujson.Object:
		// A name may contain the separators of a path. The longest name of several is meant, and
		// the last member of a name.
		longest := -1
		for n := range composite.Members {
			member := &composite.Members[n]
			name := member.Name.Value.(hujson.Literal).String()
			after, found := cutPart(path, name)
			if found && len(name) >= longest {
				longest, value, offset, rest = len(name), &member.Value, member.Name.StartOffset, after
			}
		}
	case *hujson.Array:
		text, after, found := strings.Cut(strings.TrimPrefix(path, "["), "]")
		index, err := strconv.Atoi(text)
		if found && err == nil && index >= 0 && index < len(composite.Elements) {
			value = &composite.Elements[index]
			return value, value.StartOffset, strings.TrimPrefix(after, ".")
		}
	}
	return value, offset, rest
}

// cutPart removes a name from the beginning of a path: NAME or [NAME], followed by nothing, a dot or
// a bracket.
func cutPart(path, name string) (rest string, found bool) {
	for _, part := range []string{name, "[" + name + "]"} {
		rest, found := strings.CutPrefix(path, part)
		switch {
		case !found:
		case rest == "" || rest[0] == '[':
			return rest, true
		case rest[0] == '.':
			return rest[1:], true
		}
	}
	return "", false
}
