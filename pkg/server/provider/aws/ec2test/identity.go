// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/smallstep/pkcs7"
	"github.com/stretchr/testify/require"
)

// IdentitySigner signs identity documents as EC2 does
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html). All
// signers have the same name and serial number.
type IdentitySigner struct {
	// CertificatePEM is what EC2 publishes for a region.
	CertificatePEM []byte

	certificate *x509.Certificate
	key         *rsa.PrivateKey
}

// NewIdentitySigner returns a signer with a key of some bits.
func NewIdentitySigner(t testing.TB, bits int) *IdentitySigner {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"Amazon Web Services LLC"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &IdentitySigner{
		CertificatePEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		certificate:    certificate, key: key,
	}
}

// Document returns what the metadata service of a machine returns.
func (s *IdentitySigner) Document(t testing.TB, zone, id string) []byte {
	t.Helper()
	document, err := json.MarshalIndent(map[string]any{
		"accountId": "123456789012", "architecture": "x86_64", "availabilityZone": zone, "imageId": "ami-01234567",
		"instanceId": id, "instanceType": "m7i.large", "pendingTime": "2026-11-19T16:32:11Z", "privateIp": "10.0.0.7",
		"region": strings.TrimRight(zone, "abc"), "version": "2017-09-30",
	}, "", "  ")
	require.NoError(t, err)
	data, err := pkcs7.NewSignedData(document)
	require.NoError(t, err)
	data.SetDigestAlgorithm(pkcs7.OIDDigestAlgorithmSHA256)
	// Unlike EC2, this puts the certificate into the document: it must not count.
	require.NoError(t, data.AddSigner(s.certificate, s.key, pkcs7.SignerInfoConfig{}))
	signed, err := data.Finish()
	require.NoError(t, err)
	return Lines(signed)
}

// Unsigned returns a document without a signature.
func (s *IdentitySigner) Unsigned(t testing.TB) []byte {
	t.Helper()
	data, err := pkcs7.DegenerateCertificate(s.certificate.Raw)
	require.NoError(t, err)
	return Lines(data)
}

// Lines encodes a document in base64, in lines of 64 characters.
func Lines(data []byte) []byte {
	text := base64.StdEncoding.EncodeToString(data)
	var lines strings.Builder
	for len(text) > 64 {
		lines.WriteString(text[:64] + "\n")
		text = text[64:]
	}
	lines.WriteString(text)
	return []byte(lines.String())
}
