// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"nstance.dev/operator/pkg/server/instance"
)

// indent is the indentation of one level of the object.
const indent = "  "

// encoder encodes contents. It keeps the text of each group, because most
// groups are the same in the next content.
type encoder struct {
	groups map[instance.GroupKey]encodedGroup
	// retired are the texts of the retired uids by tenant.
	retired map[string]encodedUIDs
	// size is the size of the last content.
	size int
}

// encodedGroup is the text of one group with its name. It is outdated when the
// content has another value of the group: values are immutable.
type encodedGroup struct {
	of   *stored
	text []byte
}

// encodedUIDs is the text of the retired uids of a tenant, with its name. It is
// outdated when the content has other ones: values are immutable.
type encodedUIDs struct {
	of   *retiredUIDs
	text []byte
}

// encode returns c as json.MarshalIndent does: an object with a field for each tenant,
// one for the retired uids, one for the marks if there are any, and the unknown ones.
func (e *encoder) encode(c content) ([]byte, error) {
	if e.groups == nil {
		e.groups = map[instance.GroupKey]encodedGroup{}
	}
	var b bytes.Buffer
	b.Grow(e.size + e.size/8)
	count := 0
	err := writeObject(&b, "", c.fields(), func(tenant string, groups map[string]*stored) error {
		if err := writeName(&b, tenant); err != nil {
			return err
		}
		switch tenant {
		case retiredKey:
			return e.writeRetired(&b, c.retired)
		case marksKey:
			text, err := encodeMarks(c.marks)
			b.Write(text)
			return err
		}
		if value, unknown := c.unknown[tenant]; unknown {
			return json.Indent(&b, value, indent, indent)
		}
		count += len(groups)
		return writeObject(&b, indent, groups, func(name string, of *stored) error {
			text, err := e.group(instance.GroupKey{Tenant: tenant, Group: name}, of)
			b.Write(text)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if len(e.groups) > count {
		maps.DeleteFunc(e.groups, func(key instance.GroupKey, _ encodedGroup) bool { return c.get(key) == nil })
	}
	e.size = b.Len()
	return b.Bytes(), nil
}

// fields returns the groups by tenant, retiredKey if c has retired uids, marksKey if c has
// marks, and the names of the unknown fields.
func (c content) fields() map[string]map[string]*stored {
	if len(c.retired) == 0 && len(c.marks) == 0 && len(c.unknown) == 0 {
		return c.groups
	}
	fields := maps.Clone(c.groups)
	if fields == nil {
		fields = map[string]map[string]*stored{}
	}
	if len(c.retired) > 0 {
		fields[retiredKey] = nil
	}
	if len(c.marks) > 0 {
		fields[marksKey] = nil
	}
	for name := range c.unknown {
		fields[name] = nil
	}
	return fields
}

// writeRetired writes the retired uids by tenant.
func (e *encoder) writeRetired(b *bytes.Buffer, retired map[string]*retiredUIDs) error {
	known := e.retired
	e.retired = make(map[string]encodedUIDs, len(retired))
	return writeObject(b, indent, retired, func(tenant string, uids *retiredUIDs) error {
		encoded := known[tenant]
		if encoded.of != uids {
			var text bytes.Buffer
			if err := writeName(&text, tenant); err != nil {
				return err
			}
			value, err := json.MarshalIndent(uids, indent+indent, indent)
			if err != nil {
				return fmt.Errorf("encode the retired uids of tenant %s: %w", tenant, err)
			}
			text.Write(value)
			encoded = encodedUIDs{of: uids, text: text.Bytes()}
		}
		e.retired[tenant] = encoded
		b.Write(encoded.text)
		return nil
	})
}

// group returns the text of one group with its name.
func (e *encoder) group(key instance.GroupKey, of *stored) ([]byte, error) {
	if known := e.groups[key]; known.of == of && known.text != nil {
		return known.text, nil
	}
	var b bytes.Buffer
	if err := writeName(&b, key.Group); err != nil {
		return nil, err
	}
	value, err := of.MarshalJSON()
	if err == nil {
		err = json.Indent(&b, value, indent+indent, indent)
	}
	if err != nil {
		return nil, fmt.Errorf("encode group %s: %w", key, err)
	}
	e.groups[key] = encodedGroup{of: of, text: b.Bytes()}
	return b.Bytes(), nil
}

// writeObject writes a JSON object with sorted fields. Its lines after the
// first have prefix. writeField writes a name and its value.
func writeObject[V any](b *bytes.Buffer, prefix string, fields map[string]V, writeField func(name string, value V) error) error {
	if len(fields) == 0 {
		b.WriteString("{}")
		return nil
	}
	b.WriteByte('{')
	for n, name := range slices.Sorted(maps.Keys(fields)) {
		if n > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.WriteString(prefix)
		b.WriteString(indent)
		if err := writeField(name, fields[name]); err != nil {
			return err
		}
	}
	b.WriteByte('\n')
	b.WriteString(prefix)
	b.WriteByte('}')
	return nil
}

// writeName writes the name of a field.
func writeName(b *bytes.Buffer, name string) error {
	quoted, err := json.Marshal(name)
	if err != nil {
		return fmt.Errorf("encode the name %q: %w", name, err)
	}
	b.Write(quoted)
	b.WriteString(": ")
	return nil
}
