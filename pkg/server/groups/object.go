// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// object is the object in the storage that contains the stored groups. It is
// not safe for concurrent use.
type object struct {
	store storage.Store
	key   string
	// etag is the etag that the next write replaces, "" when there is no
	// object.
	etag string
	// unconfirmed is the content of the last write if that failed and may have been carried
	// out nevertheless. It is nil if the stored object is known.
	unconfirmed []byte
	encoder     encoder
}

// read returns an empty content when there is no object.
func (o *object) read(ctx context.Context) (content, error) {
	found, err := o.store.Get(ctx, o.key)
	if errors.Is(err, storage.ErrNotFound) {
		return content{}, nil
	}
	if err != nil {
		return content{}, fmt.Errorf("read the dynamic groups: %w", err)
	}
	decoded, err := decode(found.Data)
	if err != nil {
		return content{}, fmt.Errorf("read the dynamic groups in %s: %w", o.key, err)
	}
	o.etag = found.ETag
	return decoded, nil
}

// write replaces the whole object by content. When it returns nil, the content
// is durable. An error that wraps storage.ErrConflict means that another server
// has written, and that everything in memory is outdated. After any other error
// the object may or may not have been replaced: the next write finds out, and
// replaces either version.
func (o *object) write(ctx context.Context, content content) error {
	data, err := o.encoder.encode(content)
	if err != nil {
		return fmt.Errorf("encode the dynamic groups: %w", err)
	}
	if err := o.resolveUnconfirmed(ctx); err != nil {
		return fmt.Errorf("read the dynamic groups after a failed write: %w", err)
	}
	data = append(data, '\n')
	etag, err := o.put(ctx, data)
	if errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("store the dynamic groups: %w", err)
	}
	if err != nil {
		o.unconfirmed = data
		return fmt.Errorf("store the dynamic groups: %w", err)
	}
	o.etag, o.unconfirmed = etag, nil
	return nil
}

func (o *object) put(ctx context.Context, data []byte) (etag string, err error) {
	if o.etag == "" {
		return o.store.Create(ctx, o.key, data)
	}
	return o.store.Replace(ctx, o.key, data, o.etag)
}

// resolveUnconfirmed checks whether a failed write was carried out after all.
// If so, the next write replaces that version. Any other change comes from
// another server, and the storage rejects the next write.
//
// The failed write may even still be in progress. If so, it conflicts with the
// next one, and the first to arrive wins.
func (o *object) resolveUnconfirmed(ctx context.Context) error {
	if o.unconfirmed == nil {
		return nil
	}
	found, err := o.store.Get(ctx, o.key)
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if bytes.Equal(found.Data, o.unconfirmed) {
		o.etag = found.ETag
	}
	return nil
}

// retiredKey is the field of the object that has the retired uids. It cannot be the name of a
// tenant, because it is not an identifier.
const retiredKey = "retired_uids"

// marksKey is the field of the object that has the marks, likewise.
const marksKey = "group_marks"

// decode keeps unknown fields, which a later version has stored. A name with an underscore is
// such a field, and not a tenant (docs/server-reference.md#format-versions).
func decode(data []byte) (content, error) {
	standard, err := hujson.Standardize(data)
	if err != nil {
		return content{}, err
	}
	var fields map[string]json.RawMessage
	if err := decodeStrictly(standard, &fields); err != nil {
		return content{}, err
	}
	if fields == nil {
		return content{}, errors.New("must be an object, not null")
	}
	if err := storage.CheckFormat(standard); err != nil {
		return content{}, err
	}
	decoded := content{groups: map[string]map[string]*stored{}}
	for name, value := range fields {
		switch {
		case name == retiredKey:
			decoded.retired, err = decodeRetired(value)
		case name == marksKey:
			decoded.marks, err = decodeMarks(value)
		case name == storage.FormatVersionField:
		case strings.Contains(name, "_"):
			if decoded.unknown == nil {
				decoded.unknown = storage.UnknownFields{}
			}
			decoded.unknown[name] = value
		default:
			var groups map[string]*stored
			err = decodeStrictly(value, &groups)
			decoded.groups[name] = groups
		}
		if err != nil {
			return content{}, err
		}
	}
	return decoded, nil
}

func decodeRetired(data []byte) (map[string]*retiredUIDs, error) {
	var retired map[string]*retiredUIDs
	if err := decodeStrictly(data, &retired); err != nil {
		return nil, err
	}
	path := field.NewPath(retiredKey)
	for tenant, uids := range retired {
		if uids == nil || len(*uids) == 0 {
			return nil, field.Required(path.Key(tenant), "must be a list of uids")
		}
		for n, uid := range *uids {
			if problems := validateUID(path.Key(tenant).Index(n), uid); len(problems) > 0 {
				return nil, problems.ToAggregate()
			}
		}
	}
	return retired, nil
}

func decodeStrictly(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

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
	// settings is the size of what makes a group large that operators have set: the settings,
	// and the list of instances to remove first.
	settings int
}

// encodedUIDs is the text of the retired uids of a tenant, with its name. It is outdated when
// the content has another list: lists are immutable.
type encodedUIDs struct {
	of   *retiredUIDs
	text []byte
}

// encode returns c in the format of json.MarshalIndent: an object with a field for each
// tenant, a field for the retired uids, a field for the marks if there are any, and the
// unknown fields.
func (e *encoder) encode(c content) ([]byte, error) {
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
			group, err := e.group(instance.GroupKey{Tenant: tenant, Group: name}, of)
			b.Write(group.text)
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
func (e *encoder) group(key instance.GroupKey, of *stored) (encodedGroup, error) {
	if known := e.groups[key]; known.of == of && known.text != nil {
		return known, nil
	}
	var b bytes.Buffer
	if err := writeName(&b, key.Group); err != nil {
		return encodedGroup{}, err
	}
	value, err := of.MarshalJSON()
	if err == nil {
		err = json.Indent(&b, value, indent+indent, indent)
	}
	var settings []byte
	if err == nil {
		settings, err = (&stored{Settings: of.Settings, RemoveFirst: of.RemoveFirst, Rotation: of.Rotation, Replace: of.Replace, Declared: of.Declared}).MarshalJSON()
	}
	if err != nil {
		return encodedGroup{}, fmt.Errorf("encode group %s: %w", key, err)
	}
	if e.groups == nil {
		e.groups = map[instance.GroupKey]encodedGroup{}
	}
	encoded := encodedGroup{of: of, text: b.Bytes(), settings: len(settings)}
	e.groups[key] = encoded
	return encoded, nil
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
