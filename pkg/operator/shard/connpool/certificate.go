// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"fmt"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// RenewCertificate returns the next client certificate, PEM, of the identity with which
// the Pool is connected, for a public key, PEM. Only the server that leads the cluster
// issues one; others return FailedPrecondition.
func (p *Pool) RenewCertificate(ctx context.Context, shardID string, publicKeyPEM []byte) ([]byte, error) {
	var certPEM []byte
	err := p.call(ctx, shardID, func(ctx context.Context, client nstancev1.OperatorServiceClient) error {
		reply, err := client.RenewCertificate(ctx, &nstancev1.RenewCertificateRequest{PublicKeyPem: publicKeyPEM})
		certPEM = reply.GetClientCertificatePem()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("renew the client certificate at shard %q: %w", shardID, err)
	}
	return certPEM, nil
}
