// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/server/storage"
)

// ReadAccepted reads the configuration of a shard that its leader put in force last. The
// error wraps storage.ErrNotFound if there was none.
func ReadAccepted(ctx context.Context, store storage.Store, shard string) (Source, error) {
	key := storage.AcceptedKey(shard)
	object, err := store.Get(ctx, key)
	if err != nil {
		return Source{}, fmt.Errorf("read the accepted configuration of shard %s: %w", shard, err)
	}
	return Source{Key: key, Data: object.Data, ETag: object.ETag, LastModified: object.LastModified}, nil
}

// Accept stores that the leader of a shard has put a configuration in force. It writes
// nothing if that is stored already.
func Accept(ctx context.Context, store storage.Store, shard string, source Source) error {
	before, err := ReadAccepted(ctx, store, shard)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		_, err = store.Create(ctx, storage.AcceptedKey(shard), source.Data)
	case err == nil && !bytes.Equal(before.Data, source.Data):
		_, err = store.Replace(ctx, storage.AcceptedKey(shard), source.Data, before.ETag)
	}
	if err != nil {
		return fmt.Errorf("store the accepted configuration: %w", err)
	}
	return nil
}
