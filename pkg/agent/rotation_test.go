// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/rotation"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// operator is a client of the OperatorService with a registration.
type operator struct {
	t           *testing.T
	server      *servertest.Server
	tenant      string
	mu          sync.Mutex // guards the fields below
	key         ed25519.PrivateKey
	certificate []byte
	trusted     []byte
}

// registerOperator registers the operator of a tenant, which trusts the authority of the server. The
// server leads the cluster.
func registerOperator(t *testing.T, s *servertest.Server, tenant string) *operator {
	t.Helper()
	o := &operator{t: t, server: s, tenant: tenant, trusted: s.Authority.CertificatePEM()}
	var err error
	_, o.key, err = ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	loaded, err := clusterkeys.Load(t.Context(), s.Storage, s.Secrets)
	require.NoError(t, err)
	nonce, err := registration.NewNonceSigner(loaded.Nonce).Operator(registration.OperatorNonce{
		ClusterID: servertest.ClusterID, Tenant: tenant, Lifetime: time.Minute,
	})
	require.NoError(t, err)
	request, err := keys.NewRequest(o.key)
	require.NoError(t, err)
	reply, err := s.Registration().RegisterOperator(t.Context(), &nstancev1.RegisterClientRequest{
		RegistrationNonceJwt: nonce, PublicKeyPem: request.PublicKeyPEM, TrustedAuthorities: authorities.Fingerprints(o.trusted),
	})
	require.NoError(t, err)
	o.certificate, o.trusted = reply.GetClientCertificatePem(), reply.GetAuthoritiesPem()
	return o
}

// connect opens a connection with the present certificate and the present authorities.
func (o *operator) connect() nstancev1.OperatorServiceClient { return o.connectTo(o.server) }

func (o *operator) connectTo(s *servertest.Server) nstancev1.OperatorServiceClient {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	keyPEM, err := keys.EncodePrivate(o.key)
	require.NoError(o.t, err)
	return connect(o.t, s, o.trusted, o.certificate, keyPEM)
}

func connect(t *testing.T, s *servertest.Server, caPEM, certPEM, keyPEM []byte) nstancev1.OperatorServiceClient {
	t.Helper()
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(caPEM))
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "localhost"}
	// With a callback the certificate is sent even if the server does not list its authority.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	conn, err := grpc.NewClient("passthrough:///"+s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return nstancev1.NewOperatorServiceClient(conn)
}

// renew renews the certificate.
func (o *operator) renew() {
	o.t.Helper()
	require.NoError(o.t, o.tryRenew())
}

func (o *operator) tryRenew() error {
	o.t.Helper()
	request, err := keys.NewRequest(o.key)
	require.NoError(o.t, err)
	reply, err := o.connect().RenewCertificate(o.t.Context(), &nstancev1.RenewCertificateRequest{
		PublicKeyPem: request.PublicKeyPEM, TrustedAuthorities: authorities.Fingerprints(o.trusted),
	})
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.certificate, o.trusted = reply.GetClientCertificatePem(), reply.GetAuthoritiesPem()
	return nil
}

// behind returns who has not followed the present phase at a time.
func behind(t *testing.T, s *servertest.Server, now time.Time) string {
	t.Helper()
	found, err := rotation.Check(t.Context(), s.Storage, now)
	require.NoError(t, err)
	var names []string
	for _, b := range found {
		names = append(names, b.Name)
	}
	return strings.Join(names, " ")
}

// untilBehind waits until exactly these have not followed the present phase.
func untilBehind(t *testing.T, s *servertest.Server, after time.Duration, want string) {
	t.Helper()
	var got string
	defer func() {
		if t.Failed() {
			t.Logf("behind are %q, want %q", got, want)
		}
	}()
	runtest.Eventually(t, fmt.Sprintf("behind are %q", want), func() bool {
		got = behind(t, s, time.Now().Add(after))
		return got == want
	})
}

// follow makes the clients of the test trust the authorities in the storage.
func follow(t *testing.T, s *servertest.Server) {
	t.Helper()
	loaded, err := clusterkeys.Load(t.Context(), s.Storage, s.Secrets)
	require.NoError(t, err)
	s.Authority.Set(loaded.Authority)
}

// watch opens a stream, and returns a function that waits until the server closes it.
func watch(t *testing.T, client nstancev1.OperatorServiceClient) (closed func() error) {
	t.Helper()
	stream, err := client.WatchGroups(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	return func() error {
		for {
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
	}
}

// TestTheCAIsReplacedWithoutDowntime goes through all phases with a server, three agents and an
// operator.
func TestTheCAIsReplacedWithoutDowntime(t *testing.T) {
	t.Parallel()
	s := servertest.Start(t, servertest.Options{
		Agents: true, Groups: `{"default": {"main": {"template": "worker", "size": 3}}}`,
		CertificateTTL: "30m", AgentCertificateTTL: "30m",
	})
	runtest.Eventually(t, "the instances were created", func() bool { return len(s.Created()) == 3 })
	machines := map[string]*machine{}
	for id := range s.Created() {
		m := newMachineFor(t, s, id)
		m.Options.ReportInterval = time.Second
		m.start()
		machines[id] = m
	}
	begin := time.Now()
	for _, m := range machines {
		m.untilReport(s, begin.Add(-time.Minute))
	}
	o := registerOperator(t, s, "default")
	name := "operator/default/" + servertest.ClusterID
	// The key of this authority is what has leaked.
	leaked := pki.Join(s.Authority)
	registeredAt := map[string]time.Time{}
	for id, m := range machines {
		registeredAt[id] = m.registration(s).RegisteredAt
	}
	closed := watch(t, o.connect())

	// The next authority is accepted.
	require.NoError(t, clusterkeys.Begin(t.Context(), s.Storage, s.Secrets))
	require.ErrorIs(t, clusterkeys.Begin(t.Context(), s.Storage, s.Secrets), clusterkeys.ErrPhase)
	first := behind(t, s, time.Now())
	assert.Contains(t, first, name)
	assert.Equal(t, 3, strings.Count(first, "agent/us-west-2a/"), first)
	assert.Contains(t, first, "shard/us-west-2a")
	assert.Equal(t, codes.Unavailable, status.Code(closed()), "the streams are closed, so that clients notice")
	untilBehind(t, s, 0, rotation.Booting+" "+name)
	o.renew()
	assert.Contains(t, behind(t, s, time.Now()), name, "the operator has not shown that it has stored the authorities")
	o.renew()
	untilBehind(t, s, 10*time.Minute, "")
	follow(t, s)
	for _, m := range machines {
		m.untilReport(s, time.Now())
		assert.Len(t, authorities.Fingerprints(m.read("identity/ca.crt")), 2)
	}

	// The next authority issues.
	require.NoError(t, clusterkeys.Switch(t.Context(), s.Storage))
	follow(t, s)
	untilBehind(t, s, 11*time.Minute, name)
	o.renew()
	assert.Equal(t, name, behind(t, s, time.Now()), "the certificate of before may be in use")
	untilBehind(t, s, 11*time.Minute, "")
	for _, m := range machines {
		m.untilReport(s, time.Now())
	}
	// A connection with a certificate that the leaked key has issued, as long as it is accepted.
	certPEM, keyPEM, err := leaked.IssueClient(pki.Client{ID: "thief", Tenant: "default", Role: pki.RoleOperator}, time.Hour)
	require.NoError(t, err)
	thief := connect(t, s, s.Authority.CertificatePEM(), certPEM, keyPEM)
	stolen := watch(t, thief)

	// The old authority is no longer accepted.
	require.NoError(t, clusterkeys.Finish(t.Context(), s.Storage, s.Secrets))
	require.NoError(t, clusterkeys.Finish(t.Context(), s.Storage, s.Secrets), "once more, as after a crash")
	follow(t, s)
	err = stolen()
	assert.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
	_, err = connect(t, s, s.Authority.CertificatePEM(), certPEM, keyPEM).ListGroups(t.Context(), &emptypb.Empty{})
	// The handshake fails. With TLS 1.3 the client sees the alert, or a connection that is closed.
	assert.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	for id, m := range machines {
		runtest.Eventually(t, "the agent trusts only the new authority", func() bool {
			return string(m.read("identity/ca.crt")) == string(s.Authority.CertificatePEM())
		})
		m.untilReport(s, time.Now())
		assert.Equal(t, registeredAt[id].UTC(), m.registration(s).RegisteredAt.UTC())
	}
	o.renew()
	assert.Equal(t, s.Authority.CertificatePEM(), o.trusted)
	_, err = o.connect().ListGroups(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	assert.Len(t, s.Created(), 3, "no instance was replaced")
	_, err = s.Secrets.Get(t.Context(), "ca.key")
	assert.Error(t, err, "the key of the old authority is deleted")
}
