// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"

	"nstance.dev/operator/pkg/server/storage"
)

// turns lets one write to a storage be under way at a time. Files find out by
// the clock when another has let go of their lock, and the clock of a bubble
// stands still while somebody waits for a mutex that is held meanwhile.
type turns struct {
	storage.Store
	turn chan struct{}
}

func (s *turns) take() (release func()) {
	s.turn <- struct{}{}
	return func() { <-s.turn }
}

func (s *turns) Create(ctx context.Context, key string, data []byte) (string, error) {
	defer s.take()()
	return s.Store.Create(ctx, key, data)
}

func (s *turns) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	defer s.take()()
	return s.Store.Replace(ctx, key, data, etag)
}

func (s *turns) Delete(ctx context.Context, key string) error {
	defer s.take()()
	return s.Store.Delete(ctx, key)
}
