// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tailscale/hujson"

	"nstance.dev/operator/pkg/server/storage"
)

// object is the object in the storage that holds the content, and the only place
// where it is kept. It has one caller at a time.
type object struct {
	store storage.Store
	key   string
	// etag is what the next write replaces, "" when there is no object yet.
	etag string
	// unsure is what the last write would have stored, if it failed so that the
	// object may be that or what it was before. It is nil when the object is known.
	unsure []byte
}

// read returns nothing when there is no object yet.
func (o *object) read(ctx context.Context) (content, error) {
	found, err := o.store.Get(ctx, o.key)
	if errors.Is(err, storage.ErrNotFound) {
		return content{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the dynamic groups: %w", err)
	}
	content, err := decode(found.Data)
	if err != nil {
		return nil, fmt.Errorf("reading the dynamic groups in %s: %w", o.key, err)
	}
	o.etag = found.ETag
	return content, nil
}

// write replaces the object by content as a whole. When it returns nil the
// content is durable. An error that wraps storage.ErrConflict means that another
// server has written, and that everything known of the groups is out of date.
// After any other error the object may be as before or as it should be: the next
// write finds out, and replaces either.
func (o *object) write(ctx context.Context, content content) error {
	data, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the dynamic groups: %w", err)
	}
	if err := o.recall(ctx); err != nil {
		return fmt.Errorf("reading again what a failed write left of the dynamic groups: %w", err)
	}
	data = append(data, '\n')
	etag, err := o.put(ctx, data)
	if errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("storing the dynamic groups: %w", err)
	}
	if err != nil {
		o.unsure = data
		return fmt.Errorf("storing the dynamic groups: %w", err)
	}
	o.etag, o.unsure = etag, nil
	return nil
}

func (o *object) put(ctx context.Context, data []byte) (etag string, err error) {
	if o.etag == "" {
		return o.store.Create(ctx, o.key, data)
	}
	return o.store.Replace(ctx, o.key, data, o.etag)
}

// recall finds out whether a write that failed was done after all: then it is
// what the next one replaces. Anything else that is not as before is another
// server's, and the storage refuses to replace it.
//
// The write may even be on its way still. Whichever of it and the next one comes
// first makes the other a conflict.
func (o *object) recall(ctx context.Context) error {
	if o.unsure == nil {
		return nil
	}
	found, err := o.store.Get(ctx, o.key)
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if bytes.Equal(found.Data, o.unsure) {
		o.etag = found.ETag
	}
	return nil
}

// decode refuses what it does not know: to go on without it would lose it with
// the next write.
func decode(data []byte) (content, error) {
	standard, err := hujson.Standardize(data)
	if err != nil {
		return nil, err
	}
	content := content{}
	decoder := json.NewDecoder(bytes.NewReader(standard))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&content); err != nil {
		return nil, err
	}
	if content == nil {
		return nil, errors.New("must be an object, not null")
	}
	return content, nil
}
