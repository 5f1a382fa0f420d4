// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secrets

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
)

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

// wantRejection checks that err names where the key is and what is wrong with it,
// but contains nothing of the value.
func wantRejection(t *testing.T, err error, where, what, value string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), what) {
		t.Fatalf("got error %v, want one with %q and %q", err, where, what)
	}
	if len(value) >= 8 && strings.Contains(err.Error(), value[2:8]) {
		t.Errorf("the error contains the value: %v", err)
	}
}
