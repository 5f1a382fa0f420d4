// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUserdata(t *testing.T) {
	u, err := parse("# comment\nNSTANCE_INSTANCE_ID=knd1\nNSTANCE_X=a=b << c\n\nidentity/nonce.jwt=a.b.c\n" +
		"identity/ca.crt<<END\n-----BEGIN-----\nx=y\n-----END-----\nEND\nLAST=1\n")
	require.NoError(t, err)
	assert.Equal(t, []string{"LAST=1", "NSTANCE_INSTANCE_ID=knd1", "NSTANCE_X=a=b << c"}, u.environment())
	dir := t.TempDir()
	require.NoError(t, u.write(dir))
	for name, want := range map[string]string{"identity/nonce.jwt": "a.b.c\n", "identity/ca.crt": "-----BEGIN-----\nx=y\n-----END-----\n"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
	for _, text := range []string{"text", "a/b<<END\nno end"} {
		_, err := parse(text)
		require.Error(t, err, text)
	}
}

func TestFindUserdata(t *testing.T) {
	structure := append([]byte{11, 5, 0, 0, 2}, "other\x00"+credentialPrefix+base64.StdEncoding.EncodeToString([]byte("text\n"))+"\x00\x00"...)
	got, err := findUserdata(structure)
	require.NoError(t, err)
	assert.Equal(t, "text\n", string(got))
	for _, structure := range [][]byte{nil, {11, 5}, {11, 5, 0, 0, 0, 0, 0}} {
		_, err := findUserdata(structure)
		require.Error(t, err)
	}
}
