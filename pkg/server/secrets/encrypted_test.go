// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
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

// TestFormat decrypts a published test vector of AES-256-GCM, case 14 of the
// specification, and checks the format of encrypted secrets.
func TestFormat(t *testing.T) {
	objects := newStorage(t)
	const nonce, ciphertext, tag = "000000000000000000000000", "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"
	blob, err := hex.DecodeString(nonce + ciphertext + tag)
	require.NoError(t, err)
	_, err = objects.Create(t.Context(), "secret/vector", blob)
	require.NoError(t, err)
	s := newStore(t, objects, make([]byte, 32))
	data, err := s.Get(t.Context(), "vector")
	require.NoError(t, err)
	if !bytes.Equal(data, make([]byte, 16)) {
		t.Errorf("the test vector decrypts to %x, want 16 zero bytes", data)
	}

	blobs := map[string]bool{}
	for _, name := range []string{"a", "b"} {
		require.NoError(t, s.Create(t.Context(), name, []byte("the same")))
		object, err := objects.Get(t.Context(), "secret/"+name)
		require.NoError(t, err)
		if want := 12 + len("the same") + 16; len(object.Data) != want {
			t.Errorf("the blob has %d bytes, want %d", len(object.Data), want)
		}
		blobs[string(object.Data[:12])] = true
	}
	if len(blobs) != 2 {
		t.Error("two secrets have the same random bytes")
	}
}

func TestDamaged(t *testing.T) {
	objects := newStorage(t)
	s := newStore(t, objects, current, older)
	require.NoError(t, s.Create(t.Context(), "complete", []byte("the secret")))
	complete, err := objects.Get(t.Context(), "secret/complete")
	require.NoError(t, err)
	damaged := map[string][]byte{
		"empty": {}, "short": complete.Data[:12], "cut": complete.Data[:len(complete.Data)-1],
		"longer": append(bytes.Clone(complete.Data), 0), "plain": []byte("the secret, not encrypted"),
	}
	for i := range complete.Data {
		flipped := bytes.Clone(complete.Data)
		flipped[i] ^= 1
		damaged["flipped"+hex.EncodeToString([]byte{byte(i)})] = flipped
	}
	for name, data := range damaged {
		_, err = objects.Create(t.Context(), "secret/"+name, data)
		require.NoError(t, err)
		got, err := s.Get(t.Context(), name)
		if err == nil || !strings.Contains(err.Error(), "secret/"+name) {
			t.Errorf("%s: read %q with error %v, want an error that names the object", name, got, err)
			continue
		}
		wantNoSecret(t, err)
	}
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
