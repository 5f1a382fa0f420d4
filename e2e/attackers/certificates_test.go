// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/base/keys"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// revokedTenant is a tenant whose certificates are replaced and revoked.
const revokedTenant = "revoked"

// A certificate that has expired, was replaced or was revoked is of no use, neither on a connection
// that exists nor for another certificate.
func TestOldCertificate(t *testing.T) {
	t.Parallel()
	expectAlive(t, machines.component)

	first, unused := registered(t), adminNonce(t, revokedTenant)
	// The certificate before the last is accepted for a while, for a response that was lost.
	_, last := registered(t), registered(t)
	_, folder := machineOf(t, revoked, "identity/identity.crt")
	id, _ := machineOf(t, revoked, "agent.env")
	agent := clientConfig(t, []byte(readFile(t, folder, "identity", "identity.crt")), []byte(readFile(t, folder, "identity", "identity.key")))
	connected := func(config *tls.Config) nstancev1.OperatorServiceClient {
		return nstancev1.NewOperatorServiceClient(dial(t, at(machines.operator), config))
	}
	// This connection exists when its certificate is revoked.
	existing, expiring := connected(last), issue(t, otherTenant, 30*time.Second)
	for _, client := range []nstancev1.OperatorServiceClient{existing, connected(expiring)} {
		_, err := client.ListGroups(t.Context(), &emptypb.Empty{})
		require.NoError(t, err)
	}
	untilOld := func(what string, client nstancev1.OperatorServiceClient, code codes.Code, part string) {
		testcluster.Eventually(t, timeout, what+" is refused", func(ctx context.Context) error {
			_, err := client.ListGroups(ctx, &emptypb.Empty{})
			return refused(err, code, part)
		})
		_, err := client.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{})
		expectRefused(t, err, code, part)
	}

	untilOld("a certificate that was replaced", connected(first), codes.Unauthenticated, "replaced")
	env.Admin(t, "operator", "revoke", "--tenant", revokedTenant, "--all")
	untilOld("a certificate that was revoked", connected(last), codes.Unauthenticated, "revoked")
	untilOld("a connection with such a certificate", existing, codes.Unauthenticated, "revoked")
	_, err := register(t, unused, newKey(t), nstancev1.RegistrationServiceClient.RegisterOperator)
	expectRefused(t, err, codes.Unauthenticated, "revoked")

	env.Admin(t, "agent", "revoke", "--shard", machineShard, "--instance", id, "--all")
	client := nstancev1.NewAgentServiceClient(dial(t, at(machines.agent), agent))
	testcluster.Eventually(t, timeout, "the certificate of an agent is refused", func(ctx context.Context) error {
		_, err := client.SubmitPublicKeys(ctx, &nstancev1.PublicKeysRequest{InstanceId: id})
		return refused(err, codes.Unauthenticated, "revoked")
	})
	_, err = client.RenewCertificate(t.Context(), &nstancev1.RenewCertificateRequest{})
	expectRefused(t, err, codes.Unauthenticated, "revoked")

	untilOld("a certificate that has expired", connected(expiring), codes.Unavailable, "expired certificate")
}

// registered registers an operator of revokedTenant with a new nonce and key.
func registered(t *testing.T) *tls.Config {
	t.Helper()
	key := newKey(t)
	response, err := register(t, adminNonce(t, revokedTenant), key, nstancev1.RegistrationServiceClient.RegisterOperator)
	require.NoError(t, err)
	keyPEM, err := keys.EncodePrivate(key)
	require.NoError(t, err)
	return clientConfig(t, response.GetClientCertificatePem(), keyPEM)
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return key
}
