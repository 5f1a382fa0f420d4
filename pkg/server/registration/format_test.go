// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
)

// TestFieldsOfALaterVersionAreKept: they may revoke a certificate.
func TestFieldsOfALaterVersionAreKept(t *testing.T) {
	c := newCluster(t)
	key := storage.OperatorKey("a", clusterID)
	_, err := c.storage.Create(t.Context(), key, []byte(`{"client_id":"prod","tenant":"a","cert_serial":"b","revoked_keys":["k"]}`))
	require.NoError(t, err)
	require.NoError(t, registration.Revoke(t.Context(), c.storage, "a", clusterID, "b"))
	public, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	require.NoError(t, registration.RecordIssued(t.Context(), c.storage, operatorOfA, &x509.Certificate{
		PublicKey: public, SerialNumber: big.NewInt(12), NotAfter: time.Now().Add(time.Hour),
	}))
	object, err := c.storage.Get(t.Context(), key)
	require.NoError(t, err)
	var stored map[string]any
	require.NoError(t, json.Unmarshal(object.Data, &stored))
	require.Equal(t, []any{"k"}, stored["revoked_keys"])
	require.Equal(t, []any{"b"}, stored["revoked_serials"])
	require.Equal(t, "c", stored["cert_serial"])
}

// TestFormatOfALaterVersion is refused, and the object is not changed.
func TestFormatOfALaterVersion(t *testing.T) {
	c := newCluster(t)
	key := storage.OperatorKey("a", clusterID)
	const content = `{"format_version":2,"client_id":"prod","tenant":"a"}`
	_, err := c.storage.Create(t.Context(), key, []byte(content))
	require.NoError(t, err)
	require.ErrorContains(t, registration.Revoke(t.Context(), c.storage, "a", clusterID, "b"),
		key+": the object has format version 2, and this server reads versions up to 1")
	object, err := c.storage.Get(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, content, string(object.Data))
}
