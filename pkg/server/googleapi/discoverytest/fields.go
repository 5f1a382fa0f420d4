// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package discoverytest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Mask leaves those members in a response that the parameter fields of a call selects.
func Mask(fields string, body []byte) ([]byte, error) {
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return nil, err
	}
	selection, rest, err := parseFields(fields)
	if err == nil && rest != "" {
		err = errors.New("a parenthesis is not open")
	}
	if err != nil {
		return nil, fmt.Errorf("the parameter fields is invalid: %q at %q: %w", fields, rest, err)
	}
	return json.Marshal(selection.apply(value))
}

// selection has the selected members, nil for all of one.
type selection map[string]selection

// parseFields reads names that are separated by commas, each maybe with others in parentheses.
func parseFields(text string) (all selection, rest string, err error) {
	all = selection{}
	for {
		end := strings.IndexAny(text, ",()")
		if end < 0 {
			end = len(text)
		}
		name := text[:end]
		if name == "" {
			return nil, text, fmt.Errorf("a name is missing before %q", text)
		}
		text = text[end:]
		all[name] = nil
		if below, found := strings.CutPrefix(text, "("); found {
			if all[name], text, err = parseFields(below); err != nil {
				return nil, text, err
			}
			if text, found = strings.CutPrefix(text, ")"); !found {
				return nil, text, errors.New("a parenthesis is not closed")
			}
		}
		next, found := strings.CutPrefix(text, ",")
		if !found {
			return all, text, nil
		}
		text = next
	}
}

func (all selection) apply(value any) any {
	switch value := value.(type) {
	case []any:
		for n := range value {
			value[n] = all.apply(value[n])
		}
	case map[string]any:
		for name, member := range value {
			below, selected := all[name]
			switch {
			case !selected:
				delete(value, name)
			case below != nil:
				value[name] = below.apply(member)
			}
		}
	}
	return value
}
