// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package s3

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/s3/s3test"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

func TestRetriedWrites(t *testing.T) {
	n := &storagetest.Network{Method: http.MethodPut}
	s3test.Start(t, n.Connect)
	s3test.CreateBucket(t, bucket)
	n.RetriedWrites(t, func() storage.Store { return open(t) }, 0)

	// Two concurrent writes may both be rejected.
	t.Run("rejected", func(t *testing.T) {
		n.FailWrite(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", codeConditionalConflict)
		})
		s := open(t)
		_, err := s.Create(t.Context(), "rejected", []byte("ours"))
		require.ErrorIs(t, err, storage.ErrConflict)
		_, err = s.Get(t.Context(), "rejected")
		require.ErrorIs(t, err, storage.ErrNotFound)
	})
}
