// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"bytes"
	"crypto/ed25519"
	"encoding/pem"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
)

// FuzzSetCertificate stores arbitrary certificates as a server could send. Only a certificate of
// the CA for the key and the instance is stored.
func FuzzSetCertificate(f *testing.F) {
	authority := pkitest.NewAuthority(f)
	i, err := Open(f.TempDir(), 0o600, instanceID)
	require.NoError(f, err)
	require.NoError(f, os.WriteFile(i.path(caFile), authority.CertificatePEM(), 0o600))
	key, err := i.Key()
	require.NoError(f, err)
	good, err := authority.SignClient(pki.Client{ID: instanceID, Tenant: "default", Role: pki.RoleAgent}, key.Public().(ed25519.PublicKey), time.Hour)
	require.NoError(f, err)
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: good.Raw}), 0, byte(0))
	f.Add(good.Raw, len(good.Raw)-1, byte(1))
	f.Add(authority.CertificatePEM(), 9, byte(0))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), 0, byte(0))
	f.Fuzz(func(t *testing.T, data []byte, at int, flip byte) {
		// A changed byte of the certificate breaks its signature.
		changed := bytes.Clone(good.Raw)
		changed[uint(at)%uint(len(changed))] ^= flip
		for _, candidate := range [][]byte{data, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: data}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: changed})} {
			if i.SetCertificate(candidate) == nil {
				first, _ := pem.Decode(candidate)
				assert.Equal(t, good.Raw, first.Bytes)
			}
		}
	})
}
