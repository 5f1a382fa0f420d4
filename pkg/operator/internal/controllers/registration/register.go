// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// registerTimeout is the timeout of the registration at one shard. It is short, because
// the shards are called one after the other.
const registerTimeout = 5 * time.Second

// registerAtShards calls the servers of the shards until that of the cluster's leader
// issues a certificate. A server that rejects the nonce ends the attempts: every server
// verifies it in the same way.
func (c *Controller) registerAtShards(ctx context.Context, authorities *x509.CertPool, nonce string, publicKeyPEM []byte) ([]byte, error) {
	endpoints := c.options.Endpoints.Endpoints()
	if len(endpoints) == 0 {
		return nil, errors.New("register: no shard is configured")
	}
	var failures shardErrors
	for _, id := range slices.Sorted(maps.Keys(endpoints)) {
		certPEM, err := c.registerAt(ctx, id, endpoints[id].Registration, authorities, nonce, publicKeyPEM)
		if err == nil {
			return certPEM, nil
		}
		if nonceRejected(err) {
			return nil, fmt.Errorf("register at shard %q: %w", id, err)
		}
		failures.add(id, err)
	}
	return nil, fmt.Errorf("register: %w", failures.join())
}

// nonceRejected reports whether err, wrapped or not, is a server's rejection of the
// nonce, and not of the moment or the server (docs/protocol.md#registration).
func nonceRejected(err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.InvalidArgument:
		return true
	}
	return false
}

// registerAt calls one server.
func (c *Controller) registerAt(
	ctx context.Context, id, address string, authorities *x509.CertPool, nonce string, publicKeyPEM []byte,
) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(c.options.Credentials(authorities, id)))
	if err != nil {
		return nil, fmt.Errorf("create a client for %s: %w", address, err)
	}
	defer func() { _ = connection.Close() }()
	response, err := nstancev1.NewRegistrationServiceClient(connection).RegisterOperator(ctx, &nstancev1.RegisterClientRequest{
		RegistrationNonceJwt: nonce,
		PublicKeyPem:         publicKeyPEM,
	})
	if err != nil {
		return nil, err
	}
	return response.GetClientCertificatePem(), nil
}

// shardErrors are the errors of calls to several shards.
type shardErrors struct {
	errs []error
}

func (e *shardErrors) add(id string, err error) {
	e.errs = append(e.errs, fmt.Errorf("shard %s: %s", id, shard.Message(err)))
}

func (e *shardErrors) join() error {
	if len(e.errs) == 0 {
		return errors.New("no shard is configured")
	}
	return errors.Join(e.errs...)
}
