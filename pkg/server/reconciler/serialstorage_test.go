// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"

	"nstance.dev/operator/pkg/server/storage"
)

// serialStorage is a storage that serializes writes. The file storage polls for
// its locks by the clock, which stands still in a bubble while a goroutine
// waits for a locked mutex.
type serialStorage struct {
	storage.Store
	turn chan struct{}
}

func (s *serialStorage) take() (release func()) {
	s.turn <- struct{}{}
	return func() { <-s.turn }
}

func (s *serialStorage) Create(ctx context.Context, key string, data []byte) (string, error) {
	defer s.take()()
	return s.Store.Create(ctx, key, data)
}

func (s *serialStorage) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	defer s.take()()
	return s.Store.Replace(ctx, key, data, etag)
}

func (s *serialStorage) Delete(ctx context.Context, key string) error {
	defer s.take()()
	return s.Store.Delete(ctx, key)
}
