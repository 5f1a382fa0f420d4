// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
)

const (
	ownZone    = "us-west-2a"
	ownMachine = "i-0123456789abcdef0"
)

func TestAnIdentityDocumentIsOfUseForItsMachineOnly(t *testing.T) {
	signer, other := ec2test.NewIdentitySigner(t, 2048), ec2test.NewIdentitySigner(t, 2048)
	earlier := ec2test.NewIdentitySigner(t, 2048)
	o := &Options{IdentityCertificates: string(earlier.CertificatePEM) + string(signer.CertificatePEM)}
	document := signer.Document(t, ownZone, ownMachine)
	own := providerID(ownZone, ownMachine)

	o.IdentityCertificates = string(signer.CertificatePEM)
	require.NoError(t, o.VerifyIdentity(t.Context(), own, document, "any"))

	signed, err := base64.StdEncoding.DecodeString(string(bytes.ReplaceAll(document, []byte("\n"), nil)))
	require.NoError(t, err)
	changed := bytes.ReplaceAll(signed, []byte(ownMachine), []byte("i-0123456789abcdef1"))
	require.NotEqual(t, signed, changed)
	for _, tc := range []struct {
		name, providerID string
		document         []byte
		want             string
	}{
		{"another machine", providerID(ownZone, "i-0123456789abcdef1"), document, `is of machine "aws:///us-west-2a/i-0123456789abcdef0", must be of aws:///us-west-2a/i-0123456789abcdef1`},
		{"another zone", providerID("us-west-2b", ownMachine), document, "must be of aws:///us-west-2b/"},
		{"another signer, whose certificate is in the document", own, other.Document(t, ownZone, ownMachine), "is not of a certificate of identity_certificates"},
		{"a document that was changed", providerID(ownZone, "i-0123456789abcdef1"), ec2test.Lines(changed), "is not of a certificate of identity_certificates"},
		{"no signature", own, signer.Unsigned(t), "is not of a certificate of identity_certificates"},
		{"no document", own, ec2test.Lines([]byte("{}")), "is not PKCS #7"},
		{"no base64", own, []byte("{}"), "is not in base64"},
	} {
		err := o.VerifyIdentity(t.Context(), tc.providerID, tc.document, "any")
		require.ErrorContains(t, err, tc.want, tc.name)
		assert.NotErrorIs(t, err, provider.ErrNotVerified, tc.name)
	}
}

func TestAttestationOptions(t *testing.T) {
	certificate := string(ec2test.NewIdentitySigner(t, 2048).CertificatePEM)
	text := func(options map[string]string) string {
		data, err := json.Marshal(options)
		require.NoError(t, err)
		return string(data)
	}
	options, errs := read(t, "{}", largeSubnet)
	require.Empty(t, errs)
	assert.Nil(t, provider.RequiredAttestation(options))
	options, errs = read(t, text(map[string]string{"attestation": "required", "identity_certificates": certificate + "\n" + certificate}), largeSubnet)
	require.Empty(t, errs)
	assert.NotNil(t, provider.RequiredAttestation(options))

	for name, tc := range map[string]struct {
		options map[string]string
		want    string
	}{
		"another value":         {map[string]string{"attestation": "optional"}, `options.attestation: Unsupported value: "optional": supported values: "required"`},
		"no certificate":        {map[string]string{"attestation": "required"}, "options.identity_certificates: Required value"},
		"text":                  {map[string]string{"identity_certificates": "x"}, "must be certificates in PEM, and nothing else"},
		"text after it":         {map[string]string{"identity_certificates": certificate + "x"}, "must be certificates in PEM, and nothing else"},
		"a key that is short":   {map[string]string{"identity_certificates": string(ec2test.NewIdentitySigner(t, 1024).CertificatePEM)}, "must have an RSA key of at least 2048 bits"},
		"a damaged certificate": {map[string]string{"identity_certificates": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, "options.identity_certificates: Invalid value"},
	} {
		_, errs := read(t, text(tc.options), largeSubnet)
		require.Len(t, errs, 1, name)
		assert.Contains(t, errs[0], tc.want, name)
	}
}

// FuzzVerifyIdentity: no document is accepted for a machine for which none was signed.
func FuzzVerifyIdentity(f *testing.F) {
	signer := ec2test.NewIdentitySigner(f, 2048)
	o := &Options{IdentityCertificates: string(signer.CertificatePEM)}
	document, err := base64.StdEncoding.DecodeString(string(bytes.ReplaceAll(signer.Document(f, ownZone, ownMachine), []byte("\n"), nil)))
	require.NoError(f, err)
	f.Add(document)
	f.Add([]byte("{}"))
	f.Add([]byte{0x30, 0x80, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x02})
	f.Fuzz(func(t *testing.T, data []byte) {
		assert.Error(t, o.VerifyIdentity(t.Context(), providerID(ownZone, "i-0123456789abcdef1"), ec2test.Lines(data), ""))
	})
}
