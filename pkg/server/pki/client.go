// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"unicode/utf8"

	"nstance.dev/operator/pkg/base/identifier"
)

// Roles of a client. The role determines which services the client may call.
const (
	RoleOperator = "operator"
	RoleAgent    = "agent"
)

// oidRole is the certificate extension for the client's role
// (docs/protocol.md#authentication).
var oidRole = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 999999, 1}

// Client is the identity in a client certificate.
type Client struct {
	// ID is the certificate's common name: the cluster id of an operator, the
	// instance id of an agent.
	ID string
	// Tenant is the certificate's only organization.
	Tenant string
	// Role is the value of the role extension, RoleOperator or RoleAgent. An
	// unknown value is kept, since no service accepts it.
	Role string
}

// PeerClient reads the client from a certificate whose chain was verified. The
// error names the part of the certificate that is missing or invalid.
func PeerClient(certificate *x509.Certificate) (Client, error) {
	id := certificate.Subject.CommonName
	// Cluster ids and instance ids are both valid identifiers.
	if err := identifier.Validate(id); err != nil {
		return Client{}, fmt.Errorf("client certificate: common name: %w", err)
	}
	organizations := certificate.Subject.Organization
	if len(organizations) != 1 {
		return Client{}, fmt.Errorf("client certificate of %q: has %d organizations, needs exactly one, the tenant", id, len(organizations))
	}
	if organizations[0] == "" {
		return Client{}, fmt.Errorf("client certificate of %q: the organization, which is the tenant, is empty", id)
	}
	role, err := readRole(certificate)
	if err != nil {
		return Client{}, fmt.Errorf("client certificate of %q: %w", id, err)
	}
	return Client{ID: id, Tenant: organizations[0], Role: role}, nil
}

// roleExtension encodes role as a DER UTF8String, which every reader accepts
// (docs/protocol.md#authentication).
func roleExtension(role string) (pkix.Extension, error) {
	value, err := asn1.MarshalWithParams(role, "utf8")
	if err != nil {
		return pkix.Extension{}, fmt.Errorf("encode role %q: %w", role, err)
	}
	return pkix.Extension{Id: oidRole, Value: value}, nil
}

// readRole accepts a DER string or else the raw bytes as text
// (docs/protocol.md#authentication).
func readRole(certificate *x509.Certificate) (string, error) {
	for _, extension := range certificate.Extensions {
		if !extension.Id.Equal(oidRole) {
			continue
		}
		var role string
		if rest, err := asn1.Unmarshal(extension.Value, &role); err != nil || len(rest) > 0 {
			role = string(extension.Value)
		}
		if role == "" || !utf8.ValidString(role) {
			return "", fmt.Errorf("role extension %v is not text", oidRole)
		}
		return role, nil
	}
	return "", errors.New("role extension " + oidRole.String() + " is missing")
}
