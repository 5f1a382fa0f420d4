// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package file

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/storage"
)

// TestDeleteDuringReplaces deletes an object that another client replaces
// repeatedly: after Delete has returned, no replace creates the object again.
//
// It is not part of the conformance test. S3 guarantees this too, but the service
// that the tests use for S3 does not.
func TestDeleteDuringReplaces(t *testing.T) {
	const rounds = 50
	dir := t.TempDir()
	deleter, writer := open(t, dir), open(t, dir)
	for round := range rounds {
		key := fmt.Sprintf("object%d", round)
		etag := create(t, deleter, key, "")
		var deleted atomic.Bool
		begun := make(chan struct{})
		var group errgroup.Group
		group.Go(func() error {
			for n := 0; ; n++ {
				tooLate := deleted.Load()
				var err error
				etag, err = writer.Replace(t.Context(), key, fmt.Append(nil, n), etag)
				if n == 0 {
					close(begun)
				}
				switch {
				case errors.Is(err, storage.ErrConflict):
					return nil
				case err == nil && tooLate:
					return fmt.Errorf("replaced %s after it was deleted", key)
				case err != nil:
					return err
				}
			}
		})
		<-begun
		if err := deleter.Delete(t.Context(), key); err != nil {
			t.Error(err)
		}
		deleted.Store(true)
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		if _, err := deleter.Get(t.Context(), key); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("got error %v, want one that wraps %q", err, storage.ErrNotFound)
		}
	}
}
