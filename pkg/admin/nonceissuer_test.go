// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// All commands that make nonces work with the key of a nonce issuer alone, until it is revoked.
func TestNonceIssuer(t *testing.T) {
	s := servertest.Start(t, servertest.Options{Agents: true, Groups: `{"a": {"main": {"template": "worker", "size": 1}}}`})
	t.Setenv("NSTANCE_NONCE_ISSUER_KEY", base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32)))
	create := append([]string{"nonce-issuer", "create", "ci", "--tenant", "a,b", "--agents", "--expiry", "24h"}, clusterFlags(s)...)
	assert.Regexp(t, "^Nonce issuer ci has certificate [0-9a-f]+, which is valid until ", mustRun(t, create...))

	// From here on no command has the key of the cluster.
	asIssuer := append([]string{"--nonce-issuer", "ci", "--tenant", "a"}, storageFlags(s)...)
	folder := filepath.Join(t.TempDir(), "identity")
	printed := mustRun(t, append([]string{"cluster", "register-operator", "--registration", s.RegistrationAddr, "--identity-dir", folder}, asIssuer...)...)
	assert.Contains(t, printed, "Registered as the operator of tenant a in cluster test")
	nonce := append([]string{"cluster", "nonce"}, asIssuer...)
	mustRun(t, nonce...)
	var id string
	runtest.Eventually(t, "an instance is created", func() bool {
		for created := range s.Created() {
			id = created
		}
		return id != ""
	})
	agentNonce := append([]string{"agent", "nonce", "--shard", "us-west-2a", "--instance", id}, asIssuer...)
	_, keyPEM := s.AgentKey()
	register := func(token string) error {
		_, err := s.Registration().RegisterAgent(t.Context(), &nstancev1.RegisterClientRequest{RegistrationNonceJwt: strings.TrimSpace(token), PublicKeyPem: keyPEM})
		return err
	}
	require.NoError(t, register(mustRun(t, agentNonce...)))

	_, err := run(t, append(nonce, "--tenant", "c")...)
	wantError(t, err, `nonce issuer "ci" may not make nonces of tenant "c"`)
	_, err = run(t, append(nonce, "--nonce-issuer", "other")...)
	wantError(t, err, "--nonce-issuer: nonce issuer other does not exist")
	t.Setenv("NSTANCE_ENCRYPTION_KEY", os.Getenv("NSTANCE_NONCE_ISSUER_KEY"))
	_, err = run(t, append([]string{"cluster", "nonce", "--tenant", "a"}, storageFlags(s)...)...)
	wantError(t, err, "secret/ca.key")

	// The key of the issuer is replaced: both certificates are listed, and all commands work.
	unused := mustRun(t, agentNonce...)
	mustRun(t, create...)
	mustRun(t, nonce...)
	list := append([]string{"nonce-issuer", "list"}, storageFlags(s)...)
	assert.Regexp(t, `(?s)NAME +SERIAL +STATE +TENANTS +ROLES +EXPIRES\nci +[0-9a-f]+ +valid +a,b +agent,operator .*\nci +[0-9a-f]+ +valid`, mustRun(t, list...))
	require.NoError(t, register(unused))
	unused = mustRun(t, agentNonce...)
	printed = mustRun(t, append([]string{"nonce-issuer", "revoke", "ci", "--all"}, storageFlags(s)...)...)
	assert.Regexp(t, "^Revoked the certificates [0-9a-f]+, [0-9a-f]+ of nonce issuer ci", printed)
	require.ErrorContains(t, register(unused), "was revoked at")
	_, err = run(t, nonce...)
	wantError(t, err, "nonce issuer ci has no certificate that is accepted")
	assert.Regexp(t, `(?s)revoked.*revoked`, mustRun(t, list...))
	left, err := s.Storage.List(t.Context(), storage.SecretPrefix+"nonce-issuer/")
	require.NoError(t, err)
	assert.Empty(t, left, "the keys are deleted")

	entries := strings.Join(auditLog(t, s.Storage), "\n")
	for _, want := range []string{
		`Audit: issue certificate "[0-9a-f]+" of a, b/: command, nonce issuer ci`,
		`Audit: issue nonce "operator-nonce/[0-9a-f]+.pem" of a/test: command, nonce issuer ci`,
		`Audit: issue nonce "" of a/: command, nonce issuer ci`,
		`Audit: revoke certificates "[0-9a-f]+, [0-9a-f]+" of /: command, nonce issuer ci`,
	} {
		assert.Regexp(t, want, entries)
	}
}

// An issuer gets no key with which it could read the key of the CA.
func TestNonceIssuerNeedsAKeyOfItsOwn(t *testing.T) {
	bucket, key, made := newBucket(t, "")
	t.Setenv("NSTANCE_ENCRYPTION_KEY", key)
	t.Setenv("ISSUER_KEY", base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32)))
	flags := []string{"--storage", "file", "--storage-bucket", bucket}
	create := append([]string{"nonce-issuer", "create", "ci", "--all-tenants"}, flags...)
	for _, tc := range []struct {
		flags []string
		wants []string
	}{
		{nil, []string{"--issuer-key", "NSTANCE_NONCE_ISSUER_KEY is not set"}},
		{[]string{"--issuer-key", "NSTANCE_ENCRYPTION_KEY"}, []string{"--issuer-key: must be another key than --key"}},
		{[]string{"--issuer-key-provider", "file"}, []string{"--issuer-key: must be given when"}},
		{[]string{"--issuer-key-provider", "x", "--tenant", "a", "--expiry", "8761h"}, []string{"--issuer-key-provider", "--tenant: must be given, or --all-tenants", "--expiry"}},
		{[]string{"--secrets-provider", "aws-parameter-store", "--issuer-key", "x"}, []string{"--issuer-key: is for --secrets-provider object-storage only"}},
	} {
		_, err := run(t, append(create, tc.flags...)...)
		wantError(t, err, tc.wants...)
	}
	_, err := run(t, append([]string{"nonce-issuer", "revoke", "ci", "--all"}, flags...)...)
	wantError(t, err, "nonce issuer ci has no such certificate")
	store, err := file.Open(bucket)
	require.NoError(t, err)
	issuers, err := store.List(t.Context(), "nonce-issuer/")
	require.NoError(t, err)
	assert.Empty(t, issuers)

	mustRun(t, append(create, "--issuer-key", "ISSUER_KEY")...)
	token := mustRun(t, append([]string{"cluster", "nonce", "--nonce-issuer", "ci", "--key", "ISSUER_KEY", "--tenant", "any"}, flags...)...)
	verifier := registration.NonceVerifier{Key: made.Nonce.Public().(ed25519.PublicKey), Authority: made.Authority, Store: store}
	claims, err := verifier.Verify(t.Context(), strings.TrimSpace(token))
	require.NoError(t, err)
	assert.Equal(t, "ci", claims.Issuer)
	// A change of the cluster's encryption key leaves the key of the issuer alone, and no other
	// command reads or replaces it.
	assert.Empty(t, mustRun(t, append([]string{"secret", "reencrypt"}, flags...)...))
	assert.Empty(t, mustRun(t, append([]string{"secret", "list"}, flags...)...))
	_, err = run(t, append([]string{"secret", "set", "nonce-issuer/ci/1", "--from-file", "-"}, flags...)...)
	wantError(t, err, `"nonce-issuer/ci/1" is a key of the servers`)
}
