// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage

import (
	"context"
	"strings"
)

// WithPrefix returns the part of a storage below a prefix, which may end in a slash
// or not. Keys are relative to the prefix, except those in error texts. With an
// empty prefix it returns store itself.
func WithPrefix(store Store, prefix string) Store {
	if prefix == "" {
		return store
	}
	return &prefixed{store: store, prefix: strings.TrimSuffix(prefix, "/") + "/"}
}

type prefixed struct {
	store  Store
	prefix string
}

func (p *prefixed) Get(ctx context.Context, key string) (Object, error) {
	return p.store.Get(ctx, p.prefix+key)
}

func (p *prefixed) Create(ctx context.Context, key string, data []byte) (string, error) {
	return p.store.Create(ctx, p.prefix+key, data)
}

func (p *prefixed) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	return p.store.Replace(ctx, p.prefix+key, data, etag)
}

func (p *prefixed) Delete(ctx context.Context, key string) error {
	return p.store.Delete(ctx, p.prefix+key)
}

func (p *prefixed) List(ctx context.Context, prefix string) ([]Info, error) {
	infos, err := p.store.List(ctx, p.prefix+prefix)
	for i := range infos {
		infos[i].Key = strings.TrimPrefix(infos[i].Key, p.prefix)
	}
	return infos, err
}
