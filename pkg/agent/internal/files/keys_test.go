// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package files

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/base/keys"
)

func newKeyStore(t *testing.T) *KeyStore {
	t.Helper()
	s, err := OpenKeys(filepath.Join(t.TempDir(), "keys"), 0o640)
	require.NoError(t, err)
	return s
}

func TestPublicKeyIsThatOfTheFiles(t *testing.T) {
	s := newKeyStore(t)
	submitted, err := s.PublicKey("kubelet.server")
	require.NoError(t, err)
	der, err := base64.StdEncoding.DecodeString(string(submitted))
	require.NoError(t, err)
	parsed, err := x509.ParsePKIXPublicKey(der)
	require.NoError(t, err)

	privatePEM, err := os.ReadFile(filepath.Join(s.folder, "kubelet.server.key"))
	require.NoError(t, err)
	private, err := keys.ParsePrivate(privatePEM)
	require.NoError(t, err)
	assert.True(t, private.Public().(ed25519.PublicKey).Equal(parsed))
	publicPEM, err := os.ReadFile(filepath.Join(s.folder, "kubelet.server.pub"))
	require.NoError(t, err)
	public, err := keys.ParsePublic(publicPEM)
	require.NoError(t, err)
	assert.True(t, public.Equal(parsed))
	for _, name := range []string{"kubelet.server.key", "kubelet.server.pub"} {
		info, err := os.Stat(filepath.Join(s.folder, name))
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o640), info.Mode(), name)
	}

	// A repeated request gets the same key, also if the process ended before it had written
	// both files.
	require.NoError(t, os.Remove(filepath.Join(s.folder, "kubelet.server.pub")))
	again, err := s.PublicKey("kubelet.server")
	require.NoError(t, err)
	assert.Equal(t, submitted, again)
	written, err := os.ReadFile(filepath.Join(s.folder, "kubelet.server.pub"))
	require.NoError(t, err)
	assert.Equal(t, publicPEM, written)
}

func TestKeyOfAnotherTypeIsKept(t *testing.T) {
	s := newKeyStore(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(s.folder, "a.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o640))
	submitted, err := s.PublicKey("a")
	require.NoError(t, err)
	der, err = base64.StdEncoding.DecodeString(string(submitted))
	require.NoError(t, err)
	parsed, err := x509.ParsePKIXPublicKey(der)
	require.NoError(t, err)
	assert.True(t, key.PublicKey.Equal(parsed))
}

func TestUnusableKeysAndNamesAreRefused(t *testing.T) {
	s := newKeyStore(t)
	require.NoError(t, os.WriteFile(filepath.Join(s.folder, "broken.key"), []byte("SECRET"), 0o640))
	_, err := s.PublicKey("broken")
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "SECRET")
	for _, name := range []string{"", ".", "..", ".a", "a/b", "../a", "a\\b", "a b", "a\x00", "ä", strings.Repeat("a", 201)} {
		_, err := s.PublicKey(name)
		assert.Error(t, err, "%q", name)
	}
	entries, err := os.ReadDir(s.folder)
	require.NoError(t, err)
	assert.Len(t, entries, 1, "only the broken key")
}

// TestAKeyThatCannotBeRead is reported with its reason, and the others are sent.
func TestAKeyThatCannotBeRead(t *testing.T) {
	s := newKeyStore(t)
	require.NoError(t, os.WriteFile(filepath.Join(s.folder, "broken.key"), []byte("SECRET"), 0o640))
	c := &KeyCreator{Store: s, InstanceID: "a"}
	submission := c.submission(t.Context(), []string{"broken", strings.Repeat("ä", 300), "kubelet"})
	require.Len(t, submission.GetKeys(), 1)
	assert.Equal(t, "kubelet", submission.GetKeys()[0].GetFilename())
	require.Len(t, submission.GetErrors(), 2)
	assert.Contains(t, submission.GetErrors()["broken"], "key broken: ")
	for name, problem := range submission.GetErrors() {
		assert.NotContains(t, problem, "SECRET")
		assert.LessOrEqual(t, len(problem), maxError, name)
	}
	_, err := proto.Marshal(submission)
	require.NoError(t, err)
}
