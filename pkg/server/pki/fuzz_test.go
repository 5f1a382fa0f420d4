// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"bytes"
	"crypto/ed25519"
	"encoding/pem"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzVerifyExpired verifies arbitrary certificates, as an agent sends its last one in place of a
// nonce. What is accepted is one that the authority has issued to a client.
func FuzzVerifyExpired(f *testing.F) {
	authority, err := NewAuthority("prod")
	require.NoError(f, err)
	foreign, err := NewAuthority("prod")
	require.NoError(f, err)
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	client := Client{ID: "knd06bgm7733st2576nx5jht4ecjx", Tenant: "default", Role: RoleAgent}
	own, err := authority.SignClient(client, key.Public().(ed25519.PublicKey), time.Nanosecond)
	require.NoError(f, err)
	other, err := foreign.SignClient(client, key.Public().(ed25519.PublicKey), time.Hour)
	require.NoError(f, err)
	workload, err := authority.SignWorkload(Workload{CommonName: client.ID, Organizations: []string{"default"}, TTL: time.Hour}, key.Public(), nil)
	require.NoError(f, err)
	f.Add(own.Raw, uint(0), byte(0))
	f.Add(own.Raw, uint(60), byte(1))
	f.Add(own.Raw, uint(len(own.Raw)-1), byte(1))
	f.Add(other.Raw, uint(0), byte(0))
	f.Add(workload.Raw, uint(0), byte(0))
	f.Add(authority.issuing().certificate.Raw, uint(0), byte(0))
	f.Add([]byte(nil), uint(0), byte(0))
	f.Fuzz(func(t *testing.T, der []byte, at uint, change byte) {
		der = bytes.Clone(der)
		if len(der) > 0 {
			der[at%uint(len(der))] ^= change
		}
		got, certificate, err := authority.VerifyExpired(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der}))
		if err != nil {
			return
		}
		assert.Equal(t, own.Raw, certificate.Raw)
		assert.Equal(t, client, got)
	})
}
