// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/smallstep/pkcs7"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider"
)

// argCertificates is the option with the certificates of EC2 for identity documents.
const argCertificates = "identity_certificates"

// minIdentityKey is the smallest key of a certificate, in bits. EC2 signs with RSA-2048, and
// elsewhere with keys that are too short today.
const minIdentityKey = 2048

// identityCertificates returns the certificates of the option. EC2 has one for each region
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/regions-certs.html).
func (o *Options) identityCertificates() ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
	rest := []byte(o.IdentityCertificates)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		key, ok := certificate.PublicKey.(*rsa.PublicKey)
		if !ok || key.N.BitLen() < minIdentityKey {
			return nil, fmt.Errorf("the certificate of %s must have an RSA key of at least %d bits", certificate.Subject, minIdentityKey)
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) == 0 || strings.TrimSpace(string(rest)) != "" {
		return nil, errors.New("must be certificates in PEM, and nothing else")
	}
	return certificates, nil
}

// validateAttestation reports every rule that the options of signed identities break.
func (o *Options) validateAttestation(path *field.Path) field.ErrorList {
	errs := o.ValidateAttestation(path)
	switch {
	case o.IdentityCertificates != "":
		if _, err := o.identityCertificates(); err != nil {
			errs = append(errs, field.Invalid(path.Child(argCertificates), "", err.Error()))
		}
	case o.Attestation == provider.AttestationRequired:
		errs = append(errs, field.Required(path.Child(argCertificates), "must be the RSA-2048 certificate of the region, if attestation is required"))
	}
	return errs
}

// VerifyIdentity verifies an identity document with its RSA-2048 signature
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/verify-rsa2048.html). EC2 signs no audience:
// the same document serves as long as the machine exists, and on no other machine's instance.
func (o *Options) VerifyIdentity(_ context.Context, ownID string, identity []byte, _ string) error {
	certificates, err := o.identityCertificates()
	if err != nil {
		return fmt.Errorf("%w: option %s: %w", provider.ErrNotVerified, argCertificates, err)
	}
	// The metadata service breaks the lines.
	signed, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(identity)), ""))
	if err != nil {
		return fmt.Errorf("the identity document is not in base64: %w", err)
	}
	parsed, err := pkcs7.Parse(signed)
	if err != nil {
		return fmt.Errorf("the identity document is not PKCS #7: %w", err)
	}
	// Whoever made the document could have put a certificate of their own into it.
	parsed.Certificates = certificates
	if err := parsed.Verify(); err != nil {
		return fmt.Errorf("the signature of the identity document is not of a certificate of %s: %w", argCertificates, err)
	}
	var document struct {
		InstanceID string `json:"instanceId"`
		Zone       string `json:"availabilityZone"`
	}
	if err := json.Unmarshal(parsed.Content, &document); err != nil {
		return fmt.Errorf("read the identity document: %w", err)
	}
	if id := providerID(document.Zone, document.InstanceID); id != ownID {
		return fmt.Errorf("the identity document is of machine %q, must be of %s", id, ownID)
	}
	return nil
}
