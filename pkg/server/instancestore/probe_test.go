// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"context"
	"sync"

	"nstance.dev/operator/pkg/server/storage"
)

// probe is a storage that counts calls and lets a test intervene.
type probe struct {
	storage.Store

	mu    sync.Mutex
	calls map[string]int
	// before and after are called with the name of the method and the key. An
	// error of before prevents the call; an error of after replaces its result.
	before, after func(method, key string) error
}

// count returns the number of calls by method since the last call of count.
func (p *probe) count() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := p.calls
	p.calls = nil
	return calls
}

// call makes a call unless before or after return an error.
func (p *probe) call(method, key string, do func() error) error {
	p.mu.Lock()
	if p.calls == nil {
		p.calls = map[string]int{}
	}
	p.calls[method]++
	before, after := p.before, p.after
	p.mu.Unlock()
	if before != nil {
		if err := before(method, key); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if after != nil {
		return after(method, key)
	}
	return nil
}

// intervene sets before and after.
func (p *probe) intervene(before, after func(method, key string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
}

func (p *probe) Get(ctx context.Context, key string) (object storage.Object, err error) {
	err = p.call("Get", key, func() (err error) { object, err = p.Store.Get(ctx, key); return err })
	return object, err
}

func (p *probe) Create(ctx context.Context, key string, data []byte) (etag string, err error) {
	err = p.call("Create", key, func() (err error) { etag, err = p.Store.Create(ctx, key, data); return err })
	return etag, err
}

func (p *probe) Replace(ctx context.Context, key string, data []byte, etag string) (newETag string, err error) {
	err = p.call("Replace", key, func() (err error) { newETag, err = p.Store.Replace(ctx, key, data, etag); return err })
	return newETag, err
}

func (p *probe) Delete(ctx context.Context, key string) error {
	return p.call("Delete", key, func() error { return p.Store.Delete(ctx, key) })
}

func (p *probe) List(ctx context.Context, prefix string) (infos []storage.Info, err error) {
	err = p.call("List", prefix, func() (err error) { infos, err = p.Store.List(ctx, prefix); return err })
	return infos, err
}
