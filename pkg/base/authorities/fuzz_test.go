// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package authorities_test

import (
	"encoding/pem"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/server/pki"
)

// FuzzParse reads arbitrary authorities, as a server sends them to its clients, and a writer of the
// bucket could store. Authorities that are read have the same fingerprints when they are written
// again, and have not issued the certificate of another authority's client.
func FuzzParse(f *testing.F) {
	authority, err := pki.NewAuthority("prod")
	require.NoError(f, err)
	next, err := pki.NewNextAuthority("prod")
	require.NoError(f, err)
	foreign, err := pki.NewAuthority("prod")
	require.NoError(f, err)
	certPEM, _, err := foreign.IssueClient(pki.Client{ID: "prod", Tenant: "default", Role: pki.RoleOperator}, pki.ClockSkew)
	require.NoError(f, err)
	leaf, err := pki.ParseCertificate(certPEM)
	require.NoError(f, err)
	f.Add(authority.CertificatePEM())
	f.Add(pki.Join(authority, next).CertificatePEM())
	f.Add(append([]byte("a comment\n"), certPEM...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, caPEM []byte) {
		certificates, err := authorities.Parse(caPEM)
		fingerprints := authorities.Fingerprints(caPEM)
		require.Equal(t, err == nil, len(fingerprints) > 0)
		if err != nil {
			assert.Error(t, authorities.Verify(leaf, caPEM))
			return
		}
		// A certificate is trusted if it is in the list itself.
		if !slices.ContainsFunc(certificates, leaf.Equal) {
			assert.Error(t, authorities.Verify(leaf, caPEM))
		}
		var written []byte
		for _, certificate := range certificates {
			written = append(written, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})...)
		}
		assert.Equal(t, fingerprints, authorities.Fingerprints(written))
	})
}
