// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/internal/grpcapi"
	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const clusterID = "prod"

// cluster has the keys and the storage that all servers of a cluster share.
type cluster struct {
	t       *testing.T
	storage storage.Store
	keys    *clusterkeys.Keys
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
	encrypted, err := secrets.New(store, bytes.Repeat([]byte{7}, 32))
	require.NoError(t, err)
	made, err := clusterkeys.Ensure(t.Context(), store, encrypted, clusterID)
	require.NoError(t, err)
	return &cluster{t: t, storage: store, keys: made}
}

// nonce returns the nonce of an operator.
func (c *cluster) nonce(tenant string) string {
	c.t.Helper()
	token, err := registration.NewNonceSigner(c.keys.Nonce).Operator(registration.OperatorNonce{ClusterID: clusterID, Tenant: tenant, Lifetime: time.Hour})
	require.NoError(c.t, err)
	return token
}

// objects returns the keys of the objects with a prefix.
func (c *cluster) objects(prefix string) []string {
	c.t.Helper()
	infos, err := c.storage.List(c.t.Context(), prefix)
	require.NoError(c.t, err)
	names := []string{}
	for _, info := range infos {
		names = append(names, info.Key)
	}
	return names
}

// lead returns an elector that leads the cluster, and a function that releases the
// lock like a server that stops.
func (c *cluster) lead(id string) (elector *leader.Elector, resign func()) {
	c.t.Helper()
	elector = leader.New(leader.Options{
		Store: c.storage, Key: storage.ClusterLeaderKey, ID: id, Address: "127.0.0.1:8991",
		// Long, so that no lease is lost on a loaded machine.
		Election: config.Election{Enabled: true, Interval: 20 * time.Second, Timeout: time.Minute},
	})
	leading, stopped := make(chan struct{}), make(chan struct{})
	resign = runtest.Start(c.t, func(ctx context.Context) {
		defer close(stopped)
		_ = elector.Run(ctx, func(ctx context.Context) error {
			close(leading)
			<-ctx.Done()
			return nil
		})
	})
	select {
	case <-leading:
	case <-stopped:
		c.t.Fatal("the election stopped before it was won")
	}
	return elector, resign
}

// server serves registrations and operators.
type server struct {
	*cluster
	registrations, operators string
	log                      func() string
}

// registrar returns the registrar of a server that writes to store while elector
// leads.
func (c *cluster) registrar(elector *leader.Elector, store storage.Store) *registration.Registrar {
	return &registration.Registrar{
		ClusterID: clusterID,
		Keys:      c.keys,
		Store:     elector.Fence(store),
		Leading:   elector.Leading,
		Config: func() *config.Config {
			return &config.Config{
				ClusterID:              clusterID,
				OperatorCertificateTTL: 24 * time.Hour,
				Groups:                 map[string]map[string]config.Group{"a": {"workers": {}}},
			}
		},
	}
}

// serve starts a server of the cluster.
func (c *cluster) serve(registrar *registration.Registrar) *server {
	c.t.Helper()
	logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(10)))
	serving := pki.NewServing(c.keys.Authority, pki.Names{Hosts: []string{"127.0.0.1"}})
	unary, stream := grpcapi.Authorize(logger, pki.RoleOperator)
	registrations := grpc.NewServer(grpc.Creds(credentials.NewTLS(serving.Config())))
	nstancev1.RegisterRegistrationServiceServer(registrations, &grpcapi.RegistrationService{Registrar: registrar, Logger: logger})
	operators := grpc.NewServer(grpc.Creds(credentials.NewTLS(serving.MutualConfig())), grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))
	gate := grpcapi.NewGate(func() bool { return true }, func() string { return "the shard has no leader" })
	gate.Issuer = registrar
	nstancev1.RegisterOperatorServiceServer(operators, gate)
	return &server{
		cluster:       c,
		registrations: c.listen(registrations),
		operators:     c.listen(operators),
		log:           func() string { return bufferOf(logger) },
	}
}

func bufferOf(logger klog.Logger) string {
	return logger.GetSink().(ktesting.Underlier).GetBuffer().String()
}

func (c *cluster) listen(s *grpc.Server) string {
	c.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(c.t, err)
	go func() { _ = s.Serve(listener) }()
	c.t.Cleanup(s.Stop)
	return listener.Addr().String()
}

// dial returns a connection of a client that trusts the cluster's authority and
// has the given certificate, if any.
func (s *server) dial(address string, certificates ...tls.Certificate) *grpc.ClientConn {
	s.t.Helper()
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(s.clientConfig(certificates...))))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// clientConfig is the TLS configuration of a client that trusts the cluster's authority.
func (c *cluster) clientConfig(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{"h2"},
		RootCAs:      pkitest.Roots(c.keys.Authority),
		Certificates: certificates,
	}
}

// register calls as a client without a certificate.
func (s *server) register(token string, publicKeyPEM []byte) (*nstancev1.RegisterClientResponse, error) {
	s.t.Helper()
	return nstancev1.NewRegistrationServiceClient(s.dial(s.registrations)).RegisterOperator(s.t.Context(),
		&nstancev1.RegisterClientRequest{RegistrationNonceJwt: token, PublicKeyPem: publicKeyPEM})
}

// identity is a client certificate, PEM, and its key.
type identity struct {
	certPEM []byte
	key     ed25519.PrivateKey
}

func (i identity) certificate(t *testing.T) tls.Certificate {
	t.Helper()
	return tls.Certificate{Certificate: [][]byte{parseCertificate(t, i.certPEM).Raw}, PrivateKey: i.key}
}

// issue creates an identity without a registration.
func (c *cluster) issue(client pki.Client, ttl time.Duration) identity {
	c.t.Helper()
	certPEM, keyPEM, err := c.keys.Authority.IssueClient(client, ttl)
	require.NoError(c.t, err)
	key, err := keys.ParsePrivate(keyPEM)
	require.NoError(c.t, err)
	return identity{certPEM, key}
}

// renew calls as a client with a certificate.
func (s *server) renew(i identity, publicKeyPEM []byte) (*nstancev1.RenewCertificateResponse, error) {
	s.t.Helper()
	return nstancev1.NewOperatorServiceClient(s.dial(s.operators, i.certificate(s.t))).RenewCertificate(s.t.Context(),
		&nstancev1.RenewCertificateRequest{PublicKeyPem: publicKeyPEM})
}

// newKey returns a key pair and its public half as PEM.
func newKey(t *testing.T) (ed25519.PrivateKey, []byte) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	publicKeyPEM, err := keys.EncodePublic(public)
	require.NoError(t, err)
	return private, publicKeyPEM
}

func parseCertificate(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certPEM)
	if block == nil {
		t.Fatalf("no PEM block in %q", certPEM)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return certificate
}

// wantCertificate checks the identity in the certificate of an operator.
func (s *server) wantCertificate(certPEM []byte, tenant string, key ed25519.PrivateKey) *x509.Certificate {
	s.t.Helper()
	certificate := parseCertificate(s.t, certPEM)
	_, err := certificate.Verify(x509.VerifyOptions{
		Roots: pkitest.Roots(s.keys.Authority), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	assert.NoError(s.t, err)
	want := pki.Client{ID: clusterID, Tenant: tenant, Role: pki.RoleOperator}
	if got, err := pki.PeerClient(certificate); err != nil || got != want {
		s.t.Errorf("the certificate has %+v, %v, want %+v", got, err, want)
	}
	if !key.Public().(ed25519.PublicKey).Equal(certificate.PublicKey) {
		s.t.Error("the certificate is for another key")
	}
	return certificate
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	assert.Equal(t, want, status.Code(err), "%v", err)
}
