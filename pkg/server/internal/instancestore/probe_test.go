// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"context"
	"sync"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// probe is a storage that counts calls and lets a test intervene.
type probe struct {
	storagetest.Intercepted

	mu    sync.Mutex
	calls map[string]int
	// before and after are called with the name of the method and the key. An
	// error of before prevents the call; an error of after replaces its result.
	before, after func(method, key string) error
}

func newProbe(store storage.Store) *probe {
	p := &probe{calls: map[string]int{}}
	p.Intercepted = storagetest.Intercepted{Store: store, Intercept: p.call}
	return p
}

// count returns the number of calls by method since the last call of count.
func (p *probe) count() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := p.calls
	p.calls = map[string]int{}
	return calls
}

// call makes a call unless before or after return an error.
func (p *probe) call(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
	p.mu.Lock()
	p.calls[call.Operation]++
	before, after := p.before, p.after
	p.mu.Unlock()
	if before != nil {
		if err := before(call.Operation, call.Key); err != nil {
			return err
		}
	}
	if err := do(ctx); err != nil {
		return err
	}
	if after != nil {
		return after(call.Operation, call.Key)
	}
	return nil
}

// intervene sets before and after.
func (p *probe) intervene(before, after func(method, key string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
}
