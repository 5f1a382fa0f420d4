// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/agent/internal/retry"
)

// The agent does not soon repeat a request that the server would reject again.
func TestRejectedNoncesAreRepeatedRarely(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		delays := retry.NewDelays(maxRegistrationDelay)
		err := fmt.Errorf("register: %w", status.Error(code, "reason"))
		least, most := time.Duration(0), time.Second
		switch code {
		case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.Unimplemented:
			least, most = rejectedDelay, rejectedDelay
		}
		got := delayAfter(err, delays)
		assert.True(t, least <= got && got <= most, "after %s the delay is %s", code, got)
		for range 100 {
			assert.LessOrEqual(t, delayAfter(err, delays), max(most, 2*maxRegistrationDelay), code.String())
		}
	}
	assert.Equal(t, nonceInterval, delayAfter(errNoNonce, retry.NewDelays(maxRegistrationDelay)))
	assert.Equal(t, rejectedDelay, delayAfter(fmt.Errorf("register: %w", ErrNonce), retry.NewDelays(maxRegistrationDelay)))
	assert.Less(t, delayAfter(errors.New("disk"), retry.NewDelays(maxRegistrationDelay)), time.Second)
}

// The delay ends when there is another nonce.
func TestAnotherNonceEndsTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		id, err := Open(folder, 0o600, "knc06bgm7733st2576nx5jht4ecjw")
		require.NoError(t, err)
		write := func(nonce string) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(folder, "nonce.jwt"), []byte(nonce), 0o600))
		}
		r := Registration{Identity: id}
		waited := func(before string) time.Duration {
			begin := time.Now()
			r.wait(t.Context(), before, rejectedDelay)
			return time.Since(begin)
		}
		assert.Equal(t, rejectedDelay, waited(""))
		write("first")
		assert.Equal(t, nonceInterval, waited(""))
		assert.Equal(t, rejectedDelay, waited("first"))
		time.AfterFunc(time.Minute+time.Second, func() { write("second") })
		assert.Equal(t, time.Minute+nonceInterval, waited("first"))
	})
}
