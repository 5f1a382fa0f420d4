// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package awssecrets_test

import (
	"encoding/base64"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/secrets/awssecrets"
	"nstance.dev/operator/pkg/server/secrets/secretstest"
)

const (
	keyID     = "11111111-2222-3333-4444-555555555555"
	otherID   = "99999999-2222-3333-4444-555555555555"
	plaintext = "0123456789abcdef0123456789abcdef"
)

// newKMS returns a service with two keys, and a ciphertext of the first.
func newKMS(t *testing.T) (*secretstest.KMS, *config.KMSKey) {
	k := secretstest.StartKMS(t)
	k.SetKey(keyID, secretstest.KeyEnabled, "nstance")
	k.SetKey(otherID, secretstest.KeyEnabled, "other")
	key := &config.KMSKey{KeyID: keyID, Cluster: "prod"}
	key.Ciphertext = base64.StdEncoding.EncodeToString(k.Encrypt(keyID, key.EncryptionContext(), []byte(plaintext)))
	return k, key
}

func TestDecryptKey(t *testing.T) {
	k, key := newKMS(t)
	for _, id := range []string{keyID, secretstest.KeyARN(keyID), "alias/nstance", strings.Replace(secretstest.KeyARN("nstance"), "key/", "alias/", 1)} {
		key.KeyID = id
		got, err := awssecrets.DecryptKey(t.Context(), secretstest.AWSConfig(k.URL), key)
		require.NoError(t, err, id)
		assert.Equal(t, plaintext, string(got))
	}
}

// TestKMSRefuses: the error names the field, the key and the reason, and shows neither the
// ciphertext nor the plaintext.
func TestKMSRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(k *secretstest.KMS, key *config.KMSKey)
		want   string
	}{
		{"another cluster", func(_ *secretstest.KMS, key *config.KMSKey) { key.Cluster = "test" }, "InvalidCiphertextException: it was encrypted with another encryption context"},
		{"without a context", func(k *secretstest.KMS, key *config.KMSKey) {
			key.Ciphertext = base64.StdEncoding.EncodeToString(k.Encrypt(keyID, nil, []byte(plaintext)))
		}, "InvalidCiphertextException"},
		{"a ciphertext that was changed", func(_ *secretstest.KMS, key *config.KMSKey) {
			key.Ciphertext = "AAAA" + key.Ciphertext[4:]
		}, "InvalidCiphertextException"},
		{"no ciphertext", func(_ *secretstest.KMS, key *config.KMSKey) { key.Ciphertext = "" }, "ValidationException"},
		{"another key", func(_ *secretstest.KMS, key *config.KMSKey) { key.KeyID = "alias/other" }, "IncorrectKeyException: another key"},
		{"an unknown key", func(_ *secretstest.KMS, key *config.KMSKey) { key.KeyID = "alias/none" }, "NotFoundException: the key does not exist"},
		{"a disabled key", func(k *secretstest.KMS, _ *config.KMSKey) { k.SetKey(keyID, secretstest.KeyDisabled, "") }, "DisabledException: the key is disabled"},
		{"a key that is to be deleted", func(k *secretstest.KMS, _ *config.KMSKey) {
			k.SetKey(keyID, secretstest.KeyPendingDeletion, "")
		}, "KMSInvalidStateException"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k, key := newKMS(t)
			before := key.Ciphertext
			tc.change(k, key)
			k.Faults.Set(secretstest.Lost, 0, 0)
			got, err := awssecrets.DecryptKey(t.Context(), secretstest.AWSConfig(k.URL), key)
			require.ErrorContains(t, err, tc.want)
			assert.Nil(t, got)
			require.ErrorContains(t, err, "aws_kms: decrypt ciphertext ")
			require.ErrorContains(t, err, key.KeyID)
			require.ErrorContains(t, err, "nstance:cluster-id:"+key.Cluster)
			for _, value := range []string{before, before[:16], plaintext} {
				assert.NotContains(t, err.Error(), value)
			}
			assert.LessOrEqual(t, k.Faults.Count(), 1, "a refusal is not repeated")
		})
	}
}

// TestKMSFaults: a transient error is repeated, twice at most, and a denied request is not.
func TestKMSFaults(t *testing.T) {
	for _, tc := range []struct {
		name     string
		kind     secretstest.Kind
		faults   int
		requests int
		want     string
	}{
		{"throttled once", secretstest.Throttled, 1, 2, ""},
		{"unavailable twice", secretstest.Unavailable, 2, 3, ""},
		{"a lost response", secretstest.Lost, 1, 2, ""},
		{"throttled", secretstest.Throttled, 100, 3, "ThrottlingException"},
		{"unavailable", secretstest.Unavailable, 100, 3, "InternalServiceError"},
		{"an outage", secretstest.Lost, 100, 3, "EOF"},
		{"denied", secretstest.Denied, 100, 1, "AccessDeniedException"},
		{"a message that quotes", secretstest.Quoting, 100, 1, "ValidationException"},
		{"a page of something between", secretstest.ErrorPage, 100, 1, "aws_kms"},
		{"a garbled response", secretstest.Garbled, 100, 1, "aws_kms"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k, key := newKMS(t)
			k.Faults.Set(tc.kind, 0, tc.faults)
			got, err := awssecrets.DecryptKey(t.Context(), secretstest.AWSConfig(k.URL), key)
			assert.Equal(t, tc.requests, k.Faults.Count(), "requests")
			if tc.want == "" {
				require.NoError(t, err)
				assert.Equal(t, plaintext, string(got))
				return
			}
			require.ErrorContains(t, err, tc.want)
			assert.NotContains(t, err.Error(), key.Ciphertext)
			assert.NotContains(t, err.Error(), plaintext)
		})
	}
}

// TestKMSDoesNotListen: if an endpoint refuses connections, the error has its address.
func TestKMSDoesNotListen(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	_, key := newKMS(t)
	_, err = awssecrets.DecryptKey(t.Context(), secretstest.AWSConfig("http://"+address), key)
	require.ErrorContains(t, err, address)
}

// TestKMSOfMoto runs the commands of docs/aws.md with a server and a client of other authors.
func TestKMSOfMoto(t *testing.T) {
	url := secretstest.StartMoto(t)
	secretstest.ResetMoto(t, url)
	aws := func(args ...string) string {
		t.Helper()
		program := exec.CommandContext(t.Context(), "aws", append([]string{"--endpoint-url", url, "--region", "us-east-1", "kms"}, args...)...)
		program.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=AKIATEST", "AWS_SECRET_ACCESS_KEY=secret")
		program.Stderr = os.Stderr
		out, err := program.Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	id := aws("create-key", "--query", "KeyMetadata.KeyId", "--output", "text")
	aws("create-alias", "--alias-name", "alias/nstance", "--target-key-id", id)
	other := aws("create-key", "--query", "KeyMetadata.KeyId", "--output", "text")
	key := &config.KMSKey{KeyID: "alias/nstance", Cluster: "prod"}
	key.Ciphertext = aws("generate-data-key-without-plaintext", "--key-id", "alias/nstance", "--key-spec", "AES_256",
		"--encryption-context", "nstance:cluster-id=prod", "--query", "CiphertextBlob", "--output", "text")
	got, err := awssecrets.DecryptKey(t.Context(), secretstest.AWSConfig(url), key)
	require.NoError(t, err)
	assert.Len(t, got, 32)
	for _, id := range []string{id, secretstest.KeyARN(id)} {
		key.KeyID = id
		again, err := awssecrets.DecryptKey(t.Context(), secretstest.AWSConfig(url), key)
		require.NoError(t, err, id)
		assert.Equal(t, got, again)
	}
	file := t.TempDir() + "/old.key"
	require.NoError(t, os.WriteFile(file, []byte(plaintext), 0o600))
	key.Ciphertext = aws("encrypt", "--key-id", "alias/nstance", "--plaintext", "fileb://"+file,
		"--encryption-context", "nstance:cluster-id=prod", "--query", "CiphertextBlob", "--output", "text")
	got, err = awssecrets.DecryptKey(t.Context(), secretstest.AWSConfig(url), key)
	require.NoError(t, err)
	assert.Equal(t, plaintext, string(got))

	wrong := *key
	wrong.Cluster = "test"
	_, err = awssecrets.DecryptKey(t.Context(), secretstest.AWSConfig(url), &wrong)
	require.ErrorContains(t, err, "InvalidCiphertextException")
	wrong = *key
	wrong.KeyID = other
	_, err = awssecrets.DecryptKey(t.Context(), secretstest.AWSConfig(url), &wrong)
	require.Error(t, err)
}
