// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration_test

import (
	"context"
	"crypto/x509"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

const revokedInstance = "knd06bgm7733st2576nx5jht4ecjw"

// issuedAt returns a certificate as an authority issues it at a time.
func issuedAt(at time.Time, serial int64) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: at.Add(-pki.ClockSkew)}
}

func TestCertificatesOfAgentsAreRevoked(t *testing.T) {
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
	read := func() *registration.RevokedAgents {
		t.Helper()
		revoked, err := registration.ReadRevokedAgents(t.Context(), store, "a")
		require.NoError(t, err)
		return revoked
	}
	now := time.Now()
	before, after := issuedAt(now.Add(-time.Minute), 0xab), issuedAt(now.Add(time.Minute), 0xcd)
	claims := registration.NonceClaims{Subject: revokedInstance, CreatedAt: now.Add(-time.Second)}
	assert.NoError(t, read().Check(revokedInstance, before), "nothing is revoked")
	assert.NoError(t, read().CheckNonce(claims), "nothing is revoked")

	require.NoError(t, registration.RevokeAgent(t.Context(), store, "a", revokedInstance, "cd"))
	assert.ErrorIs(t, read().Check(revokedInstance, after), registration.ErrRevoked)
	assert.NoError(t, read().Check(revokedInstance, before), "another serial number")
	assert.NoError(t, read().CheckNonce(claims), "only certificates")
	assert.NoError(t, read().Check("knd06bgm7733st2576nx5jht4ecjx", after), "another instance")

	require.NoError(t, registration.RevokeAgent(t.Context(), store, "a", revokedInstance, ""))
	assert.ErrorIs(t, read().Check(revokedInstance, before), registration.ErrRevoked)
	assert.ErrorIs(t, read().Check(revokedInstance, after), registration.ErrRevoked, "the serial number stays revoked")
	assert.NoError(t, read().Check(revokedInstance, issuedAt(now.Add(time.Minute), 0xef)))
	assert.ErrorIs(t, read().CheckNonce(claims), registration.ErrInvalidNonce)
	claims.CreatedAt = now.Add(time.Minute)
	assert.NoError(t, read().CheckNonce(claims))
	require.NoError(t, registration.RevokeAgent(t.Context(), store, "a", revokedInstance, "01"))
	assert.Equal(t, []string{"01", "cd"}, read().Instances[revokedInstance].Serials)
	assert.ErrorIs(t, read().Check(revokedInstance, before), registration.ErrRevoked)
}

// Two administrators revoke at the same time; a later version has stored more.
func TestARevocationKeepsOthers(t *testing.T) {
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
	_, err = store.Create(t.Context(), storage.RevokedAgentsKey("a"), []byte(`{"instances": {}, "more": 1}`))
	require.NoError(t, err)
	raced := false
	racing := storagetest.Intercepted{Store: store, Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
		if !raced && call.Operation == "Replace" {
			raced = true
			if err := registration.RevokeAgent(ctx, store, "a", "other", ""); err != nil {
				return errors.New("the other revocation failed")
			}
		}
		return do(ctx)
	}}
	require.NoError(t, registration.RevokeAgent(t.Context(), racing, "a", revokedInstance, "ab"))
	assert.True(t, raced)
	revoked, err := registration.ReadRevokedAgents(t.Context(), store, "a")
	require.NoError(t, err)
	assert.Len(t, revoked.Instances, 2)
	assert.Contains(t, revoked.Unknown, "more")
}
