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

	"nstance.dev/operator/pkg/identifier"
)

// Roles of a client. A role decides which services a certificate may call.
const (
	RoleOperator = "operator"
	RoleAgent    = "agent"
)

// oidRole is the certificate extension that holds the client's role (wire
// contract).
var oidRole = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 999999, 1}

// Client is what a client certificate says about its holder.
type Client struct {
	// ID is the certificate's common name: the cluster id of an operator, the
	// instance id of an agent.
	ID string
	// Tenant is the certificate's only organization.
	Tenant string
	// Role is the value of the role extension, RoleOperator or RoleAgent. A
	// value that we do not know is kept: it opens no service.
	Role string
}

// PeerClient reads the client from a certificate whose chain has been verified.
// The error says which part of the certificate is missing or ill-formed.
func PeerClient(certificate *x509.Certificate) (Client, error) {
	id := certificate.Subject.CommonName
	// Cluster ids and instance ids both keep to the identifier rule.
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

// roleExtension encodes role as a DER UTF8String, the form that every reader
// of the wire contract understands.
func roleExtension(role string) (pkix.Extension, error) {
	value, err := asn1.MarshalWithParams(role, "utf8")
	if err != nil {
		return pkix.Extension{}, fmt.Errorf("encoding role %q: %w", role, err)
	}
	return pkix.Extension{Id: oidRole, Value: value}, nil
}

// readRole accepts a DER string and, failing that, the raw bytes as text: the
// wire contract allows both.
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
			return "", fmt.Errorf("role extension %v holds no text", oidRole)
		}
		return role, nil
	}
	return "", errors.New("role extension " + oidRole.String() + " is missing")
}
