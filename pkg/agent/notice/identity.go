// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package notice

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

const (
	// awsIdentityPath has the identity document with its RSA signature, PKCS #7 in base64
	// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/verify-rsa2048.html).
	awsIdentityPath = "/latest/dynamic/instance-identity/rsa2048"
	// googleIdentityPath has a token for an audience. The format "full" names the machine
	// (https://cloud.google.com/compute/docs/instances/verifying-instance-identity).
	googleIdentityPath = "/computeMetadata/v1/instance/service-accounts/default/identity?format=full&audience="
)

// IdentitySource is a metadata service that has a signed identity of its machine.
type IdentitySource interface {
	// SignedIdentity returns the identity for an audience, as far as the cloud signs audiences.
	SignedIdentity(ctx context.Context, audience string) ([]byte, error)
}

// NewIdentitySource returns the metadata service of a provider, nil if the provider signs no
// identity. An empty URL means the address of the clouds.
func NewIdentitySource(provider, baseURL string) IdentitySource {
	source, _ := New(provider, baseURL).(IdentitySource)
	return source
}

// SignedIdentity returns the identity document, which has no audience.
func (a *aws) SignedIdentity(ctx context.Context, _ string) ([]byte, error) {
	document, err := a.get(ctx, awsIdentityPath)
	if hasStatus(err, http.StatusUnauthorized) {
		a.token = ""
		document, err = a.get(ctx, awsIdentityPath)
	}
	if err != nil {
		return nil, fmt.Errorf("read the signed identity of the machine: %w", err)
	}
	return document, nil
}

// SignedIdentity returns a token. The metadata service has none for a machine without a service
// account.
func (g *google) SignedIdentity(ctx context.Context, audience string) ([]byte, error) {
	token, err := g.get(ctx, googleIdentityPath+url.QueryEscape(audience))
	if err != nil {
		return nil, fmt.Errorf("read the signed identity of the machine: %w", err)
	}
	return []byte(token), nil
}
