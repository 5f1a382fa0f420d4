// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clusterkeys

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// FuzzAuthorities loads arbitrary authorities, as a writer of the bucket without the encryption key
// could store. What is loaded has the key of the cluster, and what is read is the same after it was
// written.
func FuzzAuthorities(f *testing.F) {
	store, err := file.Open(f.TempDir())
	require.NoError(f, err)
	encrypted, err := secrets.New(store, bytes.Repeat([]byte{7}, 32))
	require.NoError(f, err)
	made, err := Ensure(f.Context(), store, encrypted, "prod")
	require.NoError(f, err)
	own := string(made.Authority.CertificatePEM())
	add := func(a Authorities) {
		seed, err := json.Marshal(a)
		require.NoError(f, err)
		f.Add(seed)
	}
	add(Authorities{Accepted: []StoredAuthority{{CertificatePEM: own, Secret: "ca.key"}}})
	add(Authorities{Phase: PhaseAccept, Accepted: []StoredAuthority{{CertificatePEM: own, Secret: "ca.key"}, {CertificatePEM: own, Secret: "ca.key"}}})
	add(Authorities{Phase: "x", Accepted: []StoredAuthority{{CertificatePEM: own, Secret: "registration-nonce.key"}, {}}})
	f.Add([]byte(`{"accepted": [], "later": [1]}`))
	f.Add([]byte(`{"accepted": [{"certificate_pem": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----", "secret": "../ca.key"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, store.Delete(t.Context(), storage.AuthoritiesKey))
		_, err := store.Create(t.Context(), storage.AuthoritiesKey, data)
		require.NoError(t, err)
		if loaded, err := Load(t.Context(), store, encrypted); err == nil {
			key, err := loaded.Authority.KeyPEM()
			require.NoError(t, err)
			want, err := made.Authority.KeyPEM()
			require.NoError(t, err)
			assert.Equal(t, want, key)
		}
		read, _, err := ReadAuthorities(t.Context(), store)
		if err != nil {
			return
		}
		written, err := json.Marshal(read)
		require.NoError(t, err)
		var again Authorities
		require.NoError(t, json.Unmarshal(written, &again))
		rewritten, err := json.Marshal(again)
		require.NoError(t, err)
		assert.JSONEq(t, string(written), string(rewritten))
	})
}

// FuzzLoaded reads arbitrary reports of loaded authorities, as a writer of the bucket could store.
func FuzzLoaded(f *testing.F) {
	f.Add([]byte(`{"fingerprints": ["a"], "loaded_at": "2026-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"fingerprints": null, "loaded_at": ""}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var loaded, again Loaded
		if json.Unmarshal(data, &loaded) != nil {
			return
		}
		written, err := json.Marshal(loaded)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(written, &again), "%s", written)
		assert.True(t, loaded.LoadedAt.Equal(again.LoadedAt))
		assert.Equal(t, loaded.Fingerprints, again.Fingerprints)
	})
}
