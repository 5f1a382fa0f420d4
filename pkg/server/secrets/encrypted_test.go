// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secrets

import (
	"bytes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// Keys that can be distinguished in an error.
var (
	current = []byte(strings.Repeat("current.", 4))
	older   = []byte(strings.Repeat("older...", 4))
	oldest  = []byte(strings.Repeat("oldest..", 4))
)

func newStorage(t *testing.T) storage.Store {
	t.Helper()
	s, err := file.Open(t.TempDir())
	require.NoError(t, err)
	return s
}

func newStore(t *testing.T, objects storage.Store, key []byte, oldKeys ...[]byte) *Encrypted {
	t.Helper()
	s, err := New(objects, key, oldKeys...)
	require.NoError(t, err)
	return s
}

func TestRotation(t *testing.T) {
	objects := newStorage(t)
	names := map[string][]byte{"oldest.key": oldest, "older.key": older, "ca.key": current}
	for name, key := range names {
		require.NoError(t, newStore(t, objects, key).Create(t.Context(), name, []byte("the secret "+name)))
	}
	all := newStore(t, objects, current, older, oldest)
	for name := range names {
		data, err := all.Get(t.Context(), name)
		if err != nil {
			t.Error(err)
		}
		if want := "the secret " + name; string(data) != want {
			t.Errorf("%s is %q, want %q", name, data, want)
		}
	}
	// New secrets are encrypted with the current key.
	require.NoError(t, all.Create(t.Context(), "new.key", []byte("new")))
	if data, err := newStore(t, objects, current).Get(t.Context(), "new.key"); err != nil || string(data) != "new" {
		t.Errorf("the current key alone reads %q, %v", data, err)
	}
	// So are secrets that are replaced.
	require.NoError(t, all.Set(t.Context(), "oldest.key", []byte("replaced")))
	data, err := newStore(t, objects, current).Get(t.Context(), "oldest.key")
	require.NoError(t, err)
	assert.Equal(t, "replaced", string(data))

	_, err = newStore(t, objects, current, oldest).Get(t.Context(), "older.key")
	if err == nil || !strings.Contains(err.Error(), "secret/older.key") || !strings.Contains(err.Error(), "2 keys") {
		t.Errorf("got error %v, want one that names the object and counts the keys", err)
	}
	wantNoSecret(t, err)
}

// wantNoSecret checks that an error contains no part of a key or of a secret.
func wantNoSecret(t *testing.T, err error) {
	t.Helper()
	for _, secret := range []string{"current.", "older...", "oldest..", "the secret", hex.EncodeToString(current[:4])} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error contains %q: %v", secret, err)
		}
	}
}

// TestFormatOfEarlierVersions decrypts a published test vector of AES-256-GCM, case 14 of the
// specification: earlier versions have stored all secrets like this.
func TestFormatOfEarlierVersions(t *testing.T) {
	objects := newStorage(t)
	const nonce, ciphertext, tag = "000000000000000000000000", "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"
	blob, err := hex.DecodeString(nonce + ciphertext + tag)
	require.NoError(t, err)
	_, err = objects.Create(t.Context(), "secret/ca.key", blob)
	require.NoError(t, err)
	data, err := newStore(t, objects, make([]byte, 32)).Get(t.Context(), "ca.key")
	require.NoError(t, err)
	if !bytes.Equal(data, make([]byte, 16)) {
		t.Errorf("the test vector decrypts to %x, want 16 zero bytes", data)
	}
}

// TestFormat expects a version before the random bytes, but not for the secrets of the servers:
// servers of earlier versions must be able to read those.
func TestFormat(t *testing.T) {
	objects := newStorage(t)
	s := newStore(t, objects, current)
	blobs := map[string]bool{}
	for name, version := range map[string]string{"a": "\x02", "b": "\x02", "ca.key": "", "registration-nonce.key": ""} {
		require.NoError(t, s.Create(t.Context(), name, []byte("the same")))
		object, err := objects.Get(t.Context(), "secret/"+name)
		require.NoError(t, err)
		rest, found := bytes.CutPrefix(object.Data, []byte(version))
		assert.True(t, found, "%s: version", name)
		assert.Len(t, rest, 12+len("the same")+16, name)
		blobs[string(rest[:12])] = true
	}
	assert.Len(t, blobs, 4, "random bytes")
}

// copyObject stores the object of a secret under another name, as a writer of the storage can
// without a key.
func copyObject(t *testing.T, objects storage.Store, from, to string) {
	t.Helper()
	object, err := objects.Get(t.Context(), "secret/"+from)
	require.NoError(t, err)
	_, err = objects.Create(t.Context(), "secret/"+to, object.Data)
	require.NoError(t, err)
}

// storeUnbound stores a secret as an earlier version has stored it.
func storeUnbound(t *testing.T, objects storage.Store, name, data string) {
	t.Helper()
	c, err := newCipher(current)
	require.NoError(t, err)
	_, err = objects.Create(t.Context(), "secret/"+name, c.Seal(nil, nil, []byte(data), nil))
	require.NoError(t, err)
}

// A copy of a secret under another name is refused, so that no file of an instance gets a
// secret that is not meant for it, above all not the key of the certificate authority.
func TestCopyOfASecretIsRefused(t *testing.T) {
	for _, name := range []string{"ca.key", "registration-nonce.key", "team-a/token", "unbound"} {
		objects := newStorage(t)
		s := newStore(t, objects, current)
		if name == "unbound" {
			storeUnbound(t, objects, name, "the secret")
		} else {
			require.NoError(t, s.Create(t.Context(), name, []byte("the secret")))
		}
		copyObject(t, objects, name, "team-b/token")
		_, err := s.Get(t.Context(), "team-b/token")
		require.ErrorContains(t, err, "secret/team-b/token", name)
		wantNoSecret(t, err)
		if name == "team-a/token" {
			assert.ErrorContains(t, err, "a copy of another secret")
			continue
		}
		require.ErrorIs(t, err, ErrUnbound, name)
		assert.ErrorContains(t, err, "nstance-admin secret set or secret reencrypt")
	}
}

// A bound secret is no key of the servers under another name, which an attacker who has been
// given the secret would know.
func TestCopyOfASecretIsNoKeyOfTheServers(t *testing.T) {
	objects := newStorage(t)
	s := newStore(t, objects, current)
	require.NoError(t, s.Set(t.Context(), "tokens/nonce.key", []byte("the secret")))
	copyObject(t, objects, "tokens/nonce.key", storage.NonceSecret)
	_, err := s.Get(t.Context(), storage.NonceSecret)
	require.ErrorContains(t, err, "a copy of another secret")
}

func TestReencrypt(t *testing.T) {
	objects := newStorage(t)
	storeUnbound(t, objects, "unbound", "the secret unbound")
	storeUnbound(t, objects, storage.AuthoritySecret, "the secret of the authority")
	require.NoError(t, newStore(t, objects, older).Set(t.Context(), "old", []byte("the secret old")))
	require.NoError(t, newStore(t, objects, older).Create(t.Context(), storage.NonceSecret, []byte("the secret of nonces")))
	s := newStore(t, objects, current, older)
	require.NoError(t, s.Set(t.Context(), "new", []byte("the secret new")))
	want := map[string]struct {
		data     string
		replaced bool
	}{
		"unbound":               {"the secret unbound", true},
		"old":                   {"the secret old", true},
		"new":                   {"the secret new", false},
		storage.AuthoritySecret: {"the secret of the authority", false},
		storage.NonceSecret:     {"the secret of nonces", true},
	}
	refused := errors.New("refused")
	for name, secret := range want {
		if secret.replaced {
			before, err := objects.Get(t.Context(), "secret/"+name)
			require.NoError(t, err)
			_, err = s.Reencrypt(t.Context(), name, func(data []byte) error {
				assert.Equal(t, secret.data, string(data))
				return refused
			})
			require.ErrorIs(t, err, refused)
			after, err := objects.Get(t.Context(), "secret/"+name)
			require.NoError(t, err)
			assert.Equal(t, before, after, "%s was changed although it was refused", name)
		}
		for _, replaced := range []bool{secret.replaced, false} {
			got, err := s.Reencrypt(t.Context(), name, func([]byte) error { return nil })
			require.NoError(t, err)
			assert.Equal(t, replaced, got, name)
		}
		data, err := newStore(t, objects, current).Get(t.Context(), name)
		require.NoError(t, err)
		assert.Equal(t, secret.data, string(data))
	}

	accept := func([]byte) error { return nil }
	_, err := s.Reencrypt(t.Context(), "missing", accept)
	require.ErrorIs(t, err, storage.ErrNotFound)
	copyObject(t, objects, "new", "copy")
	_, err = s.Reencrypt(t.Context(), "copy", accept)
	require.ErrorContains(t, err, "a copy of another secret")
	_, err = WithoutKeys(objects).Reencrypt(t.Context(), "new", accept)
	require.ErrorIs(t, err, errNoKey)
}

func TestDamaged(t *testing.T) {
	for _, name := range []string{"token", storage.AuthoritySecret} {
		objects := newStorage(t)
		s := newStore(t, objects, current, older)
		require.NoError(t, s.Create(t.Context(), name, []byte("the secret")))
		complete, err := objects.Get(t.Context(), "secret/"+name)
		require.NoError(t, err)
		damaged := map[string][]byte{
			"empty": {}, "only a version": {boundVersion}, "short": complete.Data[:12], "cut": complete.Data[:len(complete.Data)-1],
			"longer": append(bytes.Clone(complete.Data), 0), "plain": []byte("the secret, not encrypted"),
		}
		for i := range complete.Data {
			flipped := bytes.Clone(complete.Data)
			flipped[i] ^= 1
			damaged[fmt.Sprintf("byte %d flipped", i)] = flipped
		}
		etag := complete.ETag
		for what, data := range damaged {
			etag, err = objects.Replace(t.Context(), "secret/"+name, data, etag)
			require.NoError(t, err)
			got, err := s.Get(t.Context(), name)
			if err == nil || !strings.Contains(err.Error(), "secret/"+name) {
				t.Errorf("%s: read %q with error %v, want an error that names the object", what, got, err)
				continue
			}
			wantNoSecret(t, err)
		}
	}
}

// FuzzOpen reads any object under any name: without the key nobody makes an object that is
// accepted, whatever format it claims to have.
func FuzzOpen(f *testing.F) {
	c, err := newCipher(current)
	require.NoError(f, err)
	s := &Encrypted{ciphers: []cipher.AEAD{c}}
	f.Add("token", []byte{boundVersion})
	f.Add("ca.key", s.seal("token", []byte("the secret")))
	f.Add("token", append([]byte{boundVersion}, s.seal("ca.key", []byte("the secret"))...))
	f.Fuzz(func(t *testing.T, name string, object []byte) {
		if opened, err := s.open(name, object); err == nil {
			t.Errorf("object %x of secret %q is accepted: %q", object, name, opened.data)
		}
		opened, err := s.open(name, s.seal(name, object))
		require.NoError(t, err)
		assert.True(t, opened.usable && opened.current)
		assert.True(t, bytes.Equal(object, opened.data))
	})
}

func TestErrorsOfTheStorage(t *testing.T) {
	s := newStore(t, newStorage(t), current)
	if _, err := s.Get(t.Context(), "ca.key"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("got error %v, want one that wraps %q", err, storage.ErrNotFound)
	}
	require.NoError(t, s.Create(t.Context(), "ca.key", []byte("first")))
	if err := s.Create(t.Context(), "ca.key", []byte("second")); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("got error %v, want one that wraps %q", err, storage.ErrConflict)
	}
	if data, err := s.Get(t.Context(), "ca.key"); err != nil || string(data) != "first" {
		t.Errorf("read %q, %v, want the first", data, err)
	}
	if err := s.Create(t.Context(), "../ca.crt", nil); err == nil {
		t.Error("a secret was stored outside of the secrets")
	}
}

func TestNewRejects(t *testing.T) {
	for _, size := range []int{0, 16, 24, 31, 33, 64} {
		key := bytes.Repeat([]byte("current."), 8)[:size]
		_, err := New(nil, key)
		_, oldErr := New(nil, current, older, key)
		for _, err := range []error{err, oldErr} {
			if err == nil || !strings.Contains(err.Error(), "must be 32") {
				t.Errorf("with a key of %d bytes: got error %v", size, err)
				continue
			}
			wantNoSecret(t, err)
		}
	}
}

const keyVariable = "NSTANCE_TEST_KEY"

func TestReadKey(t *testing.T) {
	binary := []byte("\x00\xff\n\r 0123456789abcdefghijklmnopq")
	trailingBreak := append(bytes.Clone(current[:30]), "\r\n"...)
	encoded := base64.StdEncoding.EncodeToString(binary)
	tests := []struct {
		name, content string
		want          []byte
	}{
		{"32 bytes", string(current), current},
		{"32 bytes of any kind", string(binary), binary},
		{"32 bytes and a line break", string(binary) + "\n", binary},
		{"32 bytes and a line break of Windows", string(binary) + "\r\n", binary},
		{"32 bytes with a trailing line break", string(trailingBreak), trailingBreak},
		{"32 bytes with a trailing line break, and another", string(trailingBreak) + "\n", trailingBreak},
		{"base64", encoded, binary},
		{"base64 and a line break", encoded + "\n", binary},
		{"base64 and a line break of Windows", encoded + "\r\n", binary},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			key, err := ReadKey(inFile(t, tc.content))
			require.NoError(t, err)
			if !bytes.Equal(key, tc.want) {
				t.Errorf("got %q, want %q", key, tc.want)
			}
			if strings.HasSuffix(tc.content, "\n") || strings.ContainsRune(tc.content, 0) {
				return // not possible in an environment variable
			}
			t.Setenv(keyVariable, tc.content)
			if key, err = ReadKey(config.KeySource{Env: keyVariable}); err != nil || !bytes.Equal(key, tc.want) {
				t.Errorf("from the environment: got %q, %v, want %q", key, err, tc.want)
			}
		})
	}
}

func TestReadKeyRejects(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString(current)
	tests := []struct{ name, content, want string }{
		{"nothing", "", "0 bytes"},
		{"too short", string(current[:31]), "31 bytes"},
		{"too long", string(current) + "x", "33 bytes"},
		{"two line breaks", string(current) + "\n\n", "34 bytes"},
		{"a space after it", encoded + " ", "45 bytes"},
		{"hexadecimal", strings.Repeat("current.", 8), "64 bytes"},
		{"base64 of fewer bytes", base64.StdEncoding.EncodeToString(current[:31]), "31 bytes"},
		{"base64 of more bytes", base64.StdEncoding.EncodeToString(append(bytes.Clone(current), 'x')), "33 bytes"},
		{"base64 without padding", strings.TrimRight(encoded, "="), "43 bytes"},
		{"base64 for URLs", "-_" + encoded[2:], "not base64"},
		{"base64 with bits too many", encoded[:42] + "5=", "not base64"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			source := inFile(t, tc.content)
			_, err := ReadKey(source)
			wantRejection(t, err, source.File, tc.want, tc.content)
			t.Setenv(keyVariable, tc.content)
			_, err = ReadKey(config.KeySource{Env: keyVariable})
			wantRejection(t, err, keyVariable, tc.want, tc.content)
		})
	}
	_, err := ReadKey(config.KeySource{Env: keyVariable + "_MISSING"})
	wantRejection(t, err, keyVariable+"_MISSING", "not set", "")
	missing := filepath.Join(t.TempDir(), "missing")
	_, err = ReadKey(config.KeySource{File: missing})
	wantRejection(t, err, missing, "no such file", "")
	_, err = ReadKey(config.KeySource{})
	wantRejection(t, err, "neither", "", "")
}

func inFile(t *testing.T, content string) config.KeySource {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return config.KeySource{File: path}
}

// wantRejection checks that err names the location of the key and the mistake, but contains
// no part of the value.
func wantRejection(t *testing.T, err error, where, what, value string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), what) {
		t.Fatalf("got error %v, want one with %q and %q", err, where, what)
	}
	if len(value) >= 8 && strings.Contains(err.Error(), value[2:8]) {
		t.Errorf("the error contains the value: %v", err)
	}
}
