// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tailscale/hujson"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/objectformat"
)

// object is the object in the storage that contains the stored groups. It is
// not safe for concurrent use.
type object struct {
	store storage.Store
	key   string
	// etag is the etag that the next write replaces, "" when there is no
	// object.
	etag string
	// unconfirmed is the content of the last write if that failed and may have
	// been carried out nevertheless. It is nil when the stored object is known.
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

// retiredKey is the field of the object that has the retired uids. It cannot be the
// name of a tenant, because it is no identifier.
const retiredKey = "retired_uids"

// marksKey is the field of the object that has the marks, likewise.
const marksKey = "group_marks"

// decode keeps fields that it does not know, which a later version has stored. A name with
// an underscore is such a field, and not that of a tenant
// (docs/server.md#format-versions).
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
	if err := objectformat.Check(standard); err != nil {
		return content{}, err
	}
	decoded := content{groups: map[string]map[string]*stored{}}
	for name, value := range fields {
		switch {
		case name == retiredKey:
			decoded.retired, err = decodeRetired(value)
		case name == marksKey:
			decoded.marks, err = decodeMarks(value)
		case name == objectformat.VersionField:
		case strings.Contains(name, "_"):
			if decoded.unknown == nil {
				decoded.unknown = objectformat.Fields{}
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
