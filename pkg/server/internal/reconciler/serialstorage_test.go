// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// serialStorage returns a storage that serializes writes. The file storage polls for
// its locks by the clock, which stands still in a bubble while a goroutine waits for a
// locked mutex.
func serialStorage(store storage.Store) storage.Store {
	turn := make(chan struct{}, 1)
	return storagetest.Intercepted{Store: store, Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
		if call.IsWrite() {
			turn <- struct{}{}
			defer func() { <-turn }()
		}
		return do(ctx)
	}}
}
