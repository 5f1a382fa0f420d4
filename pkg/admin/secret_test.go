// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/secrets/awssecrets"
	"nstance.dev/operator/pkg/server/secrets/secretstest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// TestSecrets expects the server to read the stored secrets, and the storage to have them
// encrypted.
func TestSecrets(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	bucket := []string{"--storage", "file", "--storage-bucket", s.Bucket()}
	file := filepath.Join(t.TempDir(), "value")
	set := func(name string) (string, error) {
		return run(t, append([]string{"secret", "set", name, "--from-file", file}, clusterFlags(s)...)...)
	}
	list := append([]string{"secret", "list"}, bucket...)
	assert.Empty(t, mustRun(t, list...))

	for _, value := range []string{"first value", "second value"} {
		require.NoError(t, os.WriteFile(file, []byte(value), 0o600))
		output, err := set("tokens/database.json")
		require.NoError(t, err)
		assert.NotContains(t, output, value)
		stored, err := s.Secrets.Get(t.Context(), "tokens/database.json")
		require.NoError(t, err)
		assert.Equal(t, value, string(stored))
		object, err := s.Storage.Get(t.Context(), storage.SecretPrefix+"tokens/database.json")
		require.NoError(t, err)
		assert.NotContains(t, string(object.Data), "value")
	}
	_, err := set("another.env")
	require.NoError(t, err)
	assert.Equal(t, "another.env\ntokens/database.json\n", mustRun(t, list...))

	mustRun(t, append([]string{"secret", "delete", "another.env"}, bucket...)...)
	assert.Equal(t, "tokens/database.json\n", mustRun(t, list...))
	_, err = run(t, append([]string{"secret", "delete", "another.env"}, bucket...)...)
	require.ErrorIs(t, err, storage.ErrNotFound)
	const stored = `Audit: set secret "tokens/database.json" of /: command`
	assert.Equal(t, []string{
		stored, stored, `Audit: set secret "another.env" of /: command`, `Audit: delete secret "another.env" of /: command`,
		`Audit: delete secret "another.env" of /: command`,
	}, auditLog(t, s.Storage))

	// With another key than the key of the cluster, servers could not read the secret.
	other := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(other, bytes.Repeat([]byte{7}, 32), 0o600))
	_, err = run(t, append(bucket, "secret", "set", "x", "--from-file", file, "--key-provider", "file", "--key", other)...)
	wantError(t, err, "keys of the cluster")
	assert.Equal(t, "tokens/database.json\n", mustRun(t, list...))
}

// TestReencryptSecrets begins with a secret as earlier versions have stored it, and with a copy of
// the key of the certificate authority.
func TestReencryptSecrets(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	key, err := secrets.ReadKey(config.KeySource{File: filepath.Join(s.DataDir, "encryption.key")})
	require.NoError(t, err)
	block, err := aes.NewCipher(key)
	require.NoError(t, err)
	unbound, err := cipher.NewGCMWithRandomNonce(block)
	require.NoError(t, err)
	_, err = s.Storage.Create(t.Context(), "secret/token", unbound.Seal(nil, nil, []byte("hunter2"), nil))
	require.NoError(t, err)
	_, err = s.Secrets.Get(t.Context(), "token")
	require.ErrorIs(t, err, secrets.ErrUnbound)
	authority, err := s.Storage.Get(t.Context(), "secret/ca.key")
	require.NoError(t, err)
	_, err = s.Storage.Create(t.Context(), "secret/app.key", authority.Data)
	require.NoError(t, err)

	output, err := run(t, append([]string{"secret", "reencrypt"}, clusterFlags(s)...)...)
	wantError(t, err, "encrypt secret app.key again: it has a private key of the cluster")
	assert.Equal(t, "Secret token is encrypted again.\n", output)
	stored, err := s.Secrets.Get(t.Context(), "token")
	require.NoError(t, err)
	assert.Equal(t, "hunter2", string(stored))
	_, err = s.Secrets.Get(t.Context(), "app.key")
	require.ErrorIs(t, err, secrets.ErrUnbound)
	assert.Equal(t, []string{`Audit: set secret "token" of /: encrypted again`}, auditLog(t, s.Storage))

	mustRun(t, "secret", "delete", "app.key", "--storage", "file", "--storage-bucket", s.Bucket())
	assert.Empty(t, mustRun(t, append([]string{"secret", "reencrypt"}, clusterFlags(s)...)...))
}

// A key of the cluster is no secret for instances, under whatever name.
func TestAKeyOfTheClusterIsNotStored(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	key, err := s.Secrets.Get(t.Context(), storage.NonceSecret)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "value")
	require.NoError(t, os.WriteFile(path, key, 0o600))
	_, err = run(t, append([]string{"secret", "set", "app.key", "--from-file", path}, clusterFlags(s)...)...)
	wantError(t, err, "--from-file: the value has a private key of the cluster")
	_, err = s.Secrets.Get(t.Context(), "app.key")
	require.ErrorIs(t, err, storage.ErrNotFound)
}

// TestSecretFromStandardInput reads the value that a pipe has.
func TestSecretFromStandardInput(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	command := admin.NewCommand()
	command.SetOut(new(strings.Builder))
	command.SetIn(strings.NewReader("piped"))
	command.SetArgs(append([]string{"secret", "set", "a", "--from-file", "-"}, clusterFlags(s)...))
	require.NoError(t, command.ExecuteContext(t.Context()))
	stored, err := s.Secrets.Get(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, "piped", string(stored))
}

// TestSecretsThatAreRefused has names of the servers' own keys, and values that are empty
// or too large.
func TestSecretsThatAreRefused(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(large, make([]byte, 1<<20+1), 0o600))
	for name, test := range map[string]struct {
		args  []string
		wants []string
	}{
		"no file":             {[]string{"set", "a"}, []string{"--from-file: must be the path"}},
		"the key of the CA":   {[]string{"set", "ca.key", "--from-file", "x"}, []string{`NAME: "ca.key" is a key of the servers`}},
		"the key of nonces":   {[]string{"delete", "registration-nonce.key"}, []string{"is a key of the servers"}},
		"another folder":      {[]string{"set", "../ca.key", "--from-file", "x"}, []string{"NAME:"}},
		"an empty value":      {[]string{"set", "a", "--from-file", os.DevNull}, []string{"--from-file: the value is empty"}},
		"a value too large":   {[]string{"set", "a", "--from-file", large}, []string{"more than 1048576 bytes"}},
		"a service":           {[]string{"reencrypt", "--secrets-provider", "aws-parameter-store"}, []string{"--secrets-provider: must be object-storage"}},
		"a value as argument": {[]string{"set", "a", "value"}, []string{"accepts 1 arg(s)"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, append([]string{"secret", "--storage-bucket", "b"}, test.args...)...)
			wantError(t, err, test.wants...)
		})
	}
	_, err := run(t, "secret", "list")
	wantError(t, err, "--storage-bucket")
}

// setAWS sets the environment of clients of a service.
func setAWS(t *testing.T, endpoint, url string) {
	t.Helper()
	for name, value := range map[string]string{
		endpoint: url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret",
	} {
		t.Setenv(name, value)
	}
}

// TestSecretsInAService expects the commands to use the prefix with the cluster id in the
// certificate in the storage.
func TestSecretsInAService(t *testing.T) {
	url, _ := secretstest.StartParameterStore(t)
	setAWS(t, "AWS_ENDPOINT_URL_SSM", url)
	bucket := t.TempDir()
	objects, err := file.Open(bucket)
	require.NoError(t, err)
	flags := []string{"--storage", "file", "--storage-bucket", bucket, "--secrets-provider", "aws-parameter-store"}
	_, err = run(t, append([]string{"secret", "list"}, flags...)...)
	wantError(t, err, "--secrets-prefix: must be given", "ca.crt")

	store := awssecrets.NewParameterStore(secretstest.AWSConfig(url), "/nstance/prod/")
	keys, err := clusterkeys.Ensure(t.Context(), objects, store, "prod")
	require.NoError(t, err)
	assert.Equal(t, string(keys.Authority.CertificatePEM()), mustRun(t, append([]string{"cluster", "ca"}, flags...)...))

	path := filepath.Join(t.TempDir(), "value")
	require.NoError(t, os.WriteFile(path, []byte("hunter2"), 0o600))
	mustRun(t, append([]string{"secret", "set", "tokens/a.env", "--from-file", path}, flags...)...)
	got, err := store.Get(t.Context(), "tokens/a.env")
	require.NoError(t, err)
	assert.Equal(t, "hunter2", string(got))
	assert.Equal(t, "tokens/a.env\n", mustRun(t, append([]string{"secret", "list"}, flags...)...))
	mustRun(t, append([]string{"secret", "delete", "tokens/a.env"}, flags...)...)
	_, err = run(t, append([]string{"secret", "delete", "tokens/a.env"}, flags...)...)
	require.ErrorIs(t, err, storage.ErrNotFound)
	list, err := store.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{storage.AuthoritySecret, storage.NonceSecret}, list)
}

// TestKeyOfKMS uses an encryption key that AWS KMS has encrypted for this cluster.
func TestKeyOfKMS(t *testing.T) {
	k := secretstest.StartKMS(t)
	k.SetKey("1", secretstest.KeyEnabled, "nstance")
	setAWS(t, "AWS_ENDPOINT_URL_KMS", k.URL)
	t.Setenv("AWS_REGION", "eu-north-1") // the option has another
	key := []byte("0123456789abcdef0123456789abcdef")
	bucket := t.TempDir()
	objects, err := file.Open(bucket)
	require.NoError(t, err)
	nonce := func(value string) error {
		_, err := run(t, "cluster", "nonce", "--storage", "file", "--storage-bucket", bucket, "--key-provider", "aws-kms", "--key", value)
		return err
	}
	of := func(cluster string) string {
		blob := k.Encrypt("1", map[string]string{"nstance:cluster-id": cluster}, key)
		return `{"ciphertext": "` + base64.StdEncoding.EncodeToString(blob) + `", "key_id": "alias/nstance", "region": "us-east-1"}`
	}
	wantError(t, nonce(of("prod")), "--key:", "the id of the cluster is not known", "ca.crt")
	encrypted, err := secrets.New(objects, key)
	require.NoError(t, err)
	_, err = clusterkeys.Ensure(t.Context(), objects, encrypted, "prod")
	require.NoError(t, err)
	require.NoError(t, nonce(of("prod")))
	wantError(t, nonce(of("test")), "--key:", "InvalidCiphertextException", "nstance:cluster-id:prod")
	for _, value := range []string{string(key), `"` + string(key) + `"`, `{"ciphertext": "` + string(key) + `", "key_id": "alias/nstance"}`, `{}`} {
		err := nonce(value)
		wantError(t, err, "--key:", "must be the value of aws_kms in the configuration")
		assert.NotContains(t, err.Error(), string(key))
	}
}

// TestKeyInAService reads the encryption key of the secrets in the storage from Parameter
// Store.
func TestKeyInAService(t *testing.T) {
	url, _ := secretstest.StartParameterStore(t)
	setAWS(t, "AWS_ENDPOINT_URL_SSM", url)
	key := []byte("0123456789abcdef0123456789abcdef")
	services := awssecrets.NewParameterStore(secretstest.AWSConfig(url), "/keys/")
	require.NoError(t, services.Set(t.Context(), "good", []byte(base64.StdEncoding.EncodeToString(key)+"\n")))
	require.NoError(t, services.Set(t.Context(), "short", []byte("hunter2")))
	bucket := t.TempDir()
	objects, err := file.Open(bucket)
	require.NoError(t, err)
	encrypted, err := secrets.New(objects, key)
	require.NoError(t, err)
	_, err = clusterkeys.Ensure(t.Context(), objects, encrypted, "prod")
	require.NoError(t, err)
	nonce := func(name string) error {
		_, err := run(t, "cluster", "nonce", "--storage", "file", "--storage-bucket", bucket, "--key-provider", "aws-parameter-store", "--key", name)
		return err
	}
	require.NoError(t, nonce("/keys/good"))
	wantError(t, nonce("/keys/missing"), "--key:", "/keys/missing", "not found")
	err = nonce("/keys/short")
	wantError(t, err, "--key:", "/keys/short", "7 bytes")
	assert.NotContains(t, err.Error(), "hunter2")
}
