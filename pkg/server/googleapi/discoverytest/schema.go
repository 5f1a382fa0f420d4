// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package discoverytest

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// checker compares one value with its schema.
type checker struct {
	document *Document
	method   string
	// request is true if values that only the API sets are mistakes, and absent values that the
	// method requires, too.
	request  bool
	problems []string
}

func (c *checker) report(path, format string, values ...any) {
	c.problems = append(c.problems, path+": "+fmt.Sprintf(format, values...))
}

func (c *checker) check(path string, schema *Schema, value any) {
	if schema.Ref != "" {
		target := c.document.Schemas[schema.Ref]
		if target == nil {
			c.report(path, "the document has no schema %s", schema.Ref)
			return
		}
		c.check(path, target, value)
		return
	}
	switch schema.Type {
	case "object":
		c.checkObject(path, schema, value)
	case "array":
		c.checkArray(path, schema, value)
	case "string":
		text, ok := value.(string)
		if !ok {
			c.report(path, "%v is no string", value)
		} else if problem := schema.checkText(text); problem != "" {
			c.report(path, "%s", problem)
		}
	case "boolean":
		if _, ok := value.(bool); !ok {
			c.report(path, "%v is no boolean", value)
		}
	case "integer", "number":
		number, ok := value.(json.Number)
		if !ok {
			c.report(path, "%v is no number", value)
		} else if problem := schema.checkText(number.String()); problem != "" {
			c.report(path, "%s", problem)
		}
	case "any":
	default:
		c.report(path, "the document has the type %q", schema.Type)
	}
}

func (c *checker) checkObject(path string, schema *Schema, value any) {
	object, ok := value.(map[string]any)
	if !ok {
		c.report(path, "%v is no object", value)
		return
	}
	for name, member := range object {
		below := schema.Properties[name]
		if below == nil {
			below = schema.AdditionalProperties
		}
		switch {
		case below == nil:
			c.report(path+"."+name, "is not known")
		case c.request && below.ReadOnly:
			c.report(path+"."+name, "is output only")
		default:
			c.check(path+"."+name, below, member)
		}
	}
	if !c.request {
		return
	}
	for name, below := range schema.Properties {
		if _, has := object[name]; !has && slices.Contains(below.Annotations.Required, c.method) {
			c.report(path+"."+name, "is required")
		}
	}
}

func (c *checker) checkArray(path string, schema *Schema, value any) {
	list, ok := value.([]any)
	if !ok {
		c.report(path, "%v is no array", value)
		return
	}
	items := *schema.Items
	if items.Pattern == "" {
		items.Pattern = schema.Pattern
	}
	for n, element := range list {
		c.check(fmt.Sprintf("%s[%d]", path, n), &items, element)
	}
}

// checkText returns the mistake in a value with the format of a text, or an empty text.
func (s *Schema) checkText(text string) string {
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, text) {
		return fmt.Sprintf("%q is none of %q", text, s.Enum)
	}
	if s.Pattern != "" && !compile(s.Pattern).MatchString(text) {
		return fmt.Sprintf("%q does not match %s", text, s.Pattern)
	}
	if s.Type == "boolean" && text != "true" && text != "false" {
		return fmt.Sprintf("%q is no boolean", text)
	}
	var err error
	switch s.Format {
	case "int32":
		_, err = strconv.ParseInt(text, 10, 32)
	case "uint32":
		_, err = strconv.ParseUint(text, 10, 32)
	case "int64":
		_, err = strconv.ParseInt(text, 10, 64)
	case "uint64":
		_, err = strconv.ParseUint(text, 10, 64)
	case "byte":
		_, err = base64.StdEncoding.DecodeString(text)
	case "date-time", "google-datetime":
		_, err = time.Parse(time.RFC3339, text)
	case "double", "float":
		_, err = strconv.ParseFloat(text, 64)
	}
	if err != nil {
		return fmt.Sprintf("%q is no %s: %v", text, s.Format, err)
	}
	return s.checkRange(text)
}

func (s *Schema) checkRange(text string) string {
	if s.Minimum == "" && s.Maximum == "" {
		return ""
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Sprintf("%q is no number", text)
	}
	if least, err := strconv.ParseFloat(s.Minimum, 64); err == nil && value < least {
		return fmt.Sprintf("%s is less than %s", text, s.Minimum)
	}
	if most, err := strconv.ParseFloat(s.Maximum, 64); err == nil && value > most {
		return fmt.Sprintf("%s is more than %s", text, s.Maximum)
	}
	return ""
}

// patterns caches compiled patterns.
var patterns sync.Map

// compile returns a pattern of a document, which must match the whole text.
func compile(pattern string) *regexp.Regexp {
	if known, found := patterns.Load(pattern); found {
		return known.(*regexp.Regexp)
	}
	compiled := regexp.MustCompile("^(?:" + pattern + ")$")
	patterns.Store(pattern, compiled)
	return compiled
}

// Mask removes the members of a response that the parameter fields of a call does not select.
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

// parseFields reads names that are separated by commas, each maybe with others in
// parentheses.
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
