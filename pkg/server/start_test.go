// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// TestReadConfigOfAHangingStorage starts a server whose storage does not respond: the calls
// end, and the start fails.
func TestReadConfigOfAHangingStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := file.Open(t.TempDir())
		require.NoError(t, err)
		calls := 0
		s := &Server{Shard: "us-west-2a", Storage: storagetest.Intercepted{Store: store,
			Intercept: func(ctx context.Context, _ storagetest.Call, _ func(context.Context) error) error {
				calls++
				<-ctx.Done()
				return ctx.Err()
			}}}
		_, err = s.readConfig(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, readAttempts, calls)
	})
}
