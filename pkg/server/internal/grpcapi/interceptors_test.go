// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/internal/grpcapi"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// certificate returns a client certificate as the TLS handshake provides it.
func certificate(name string, organizations []string, role string) *x509.Certificate {
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: organizations}}
	if role != "" {
		c.Extensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 999999, 1}, Value: []byte(role)}}
	}
	return c
}

// connected returns the context of a call over a connection.
func connected(info credentials.AuthInfo) context.Context {
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: info})
}

func verified(c *x509.Certificate) context.Context {
	return connected(credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{c}}}})
}

type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stream) Context() context.Context { return s.ctx }

func TestAuthorize(t *testing.T) {
	tenants := []string{"default"}
	tests := []struct {
		name string
		ctx  context.Context
		code codes.Code
		want string
	}{
		{"an operator", verified(certificate("test", tenants, "operator")), codes.OK, ""},
		{"an agent", verified(certificate("test", tenants, "agent")), codes.PermissionDenied, `client "test" has role "agent", this service is for role "operator"`},
		{"an unknown role", verified(certificate("test", tenants, "admin")), codes.PermissionDenied, `role "admin"`},
		{"no peer", context.Background(), codes.Unauthenticated, "no peer"},
		{"no TLS", connected(nil), codes.Unauthenticated, "no TLS"},
		{"no verified certificate", connected(credentials.TLSInfo{}), codes.Unauthenticated, "no verified client certificate"},
		{"no common name", verified(certificate("", tenants, "operator")), codes.Unauthenticated, "common name: must not be empty"},
		{"an ill-formed common name", verified(certificate("a--b", tenants, "operator")), codes.Unauthenticated, `common name: "a--b"`},
		{"no tenant", verified(certificate("test", nil, "operator")), codes.Unauthenticated, "has 0 organizations"},
		{"two tenants", verified(certificate("test", []string{"default", "other"}, "operator")), codes.Unauthenticated, "has 2 organizations"},
		{"an empty tenant", verified(certificate("test", []string{""}, "operator")), codes.Unauthenticated, "is empty"},
		{"no role", verified(certificate("test", tenants, "")), codes.Unauthenticated, "is missing"},
		{"a role that is not text", verified(certificate("test", tenants, "\xff")), codes.Unauthenticated, "is not text"},
	}
	unary, streaming := grpcapi.Authorize(klog.Background(), pki.RoleOperator)
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			passed := 0
			_, err := unary(tc.ctx, nil, nil, func(context.Context, any) (any, error) {
				passed++
				return "", nil
			})
			streamErr := streaming(nil, stream{ctx: tc.ctx}, nil, func(any, grpc.ServerStream) error {
				passed++
				return nil
			})
			for _, err := range []error{err, streamErr} {
				if status.Code(err) != tc.code || tc.want != "" && !strings.Contains(err.Error(), tc.want) {
					t.Errorf("got %v, want %v with %q", err, tc.code, tc.want)
				}
			}
			if wanted := tc.code == codes.OK; passed != 0 && !wanted || passed != 2 && wanted {
				t.Errorf("%d of 2 calls were accepted", passed)
			}
		})
	}
}

// TestHandshake: the clients trust the server, which must reject their certificates.
func TestHandshake(t *testing.T) {
	server := servertest.Start(t, servertest.Options{})
	operator := pki.Client{ID: "test", Tenant: "default", Role: pki.RoleOperator}
	foreign, err := pki.NewAuthority("foreign")
	require.NoError(t, err)
	issue := func(authority *pki.Authority, lifetime time.Duration) tls.Certificate {
		t.Helper()
		certPEM, keyPEM, err := authority.IssueClient(operator, lifetime)
		require.NoError(t, err)
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		require.NoError(t, err)
		return pair
	}
	for name, test := range map[string]struct {
		certificate tls.Certificate
		alert       string
	}{
		"of another authority": {issue(foreign, time.Hour), "unknown certificate authority"},
		"expired":              {issue(server.Authority, -time.Minute), "expired certificate"},
		"missing":              {tls.Certificate{}, "certificate required"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := nstancev1.NewOperatorServiceClient(server.Connect(test.certificate)).ListGroups(t.Context(), &emptypb.Empty{})
			wantCode(t, "ListGroups", err, codes.Unavailable)
			// gRPC may have written before it reads why the connection was closed.
			raw, err := server.DialAddress(t.Context(), server.Addr)
			require.NoError(t, err)
			defer raw.Close()
			config := &tls.Config{RootCAs: pkitest.Roots(server.Authority), ServerName: "localhost", NextProtos: []string{"h2"}}
			// The client also sends a certificate that the server has not requested.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &test.certificate, nil }
			conn := tls.Client(raw, config)
			require.NoError(t, conn.HandshakeContext(t.Context()), "the client trusts the server")
			_, err = conn.Read(make([]byte, 1))
			assert.ErrorContains(t, err, "remote error: tls: "+test.alert)
			assert.Empty(t, server.Calls(), "calls that arrived")
		})
	}
	_, err = nstancev1.NewOperatorServiceClient(server.Connect(issue(server.Authority, time.Hour))).ListGroups(t.Context(), &emptypb.Empty{})
	require.NoError(t, err, "with a certificate of the cluster's authority")
}

func TestAgentMayCallNothing(t *testing.T) {
	agent := servertest.Start(t, servertest.Options{}).Dial(pki.Client{ID: "knc06bgm7733st2576nx5jht4ecjw", Tenant: "default", Role: pki.RoleAgent})
	_, err := agent.ListGroups(t.Context(), &emptypb.Empty{})
	wantCode(t, "ListGroups", err, codes.PermissionDenied)
	_, err = agent.RefreshConfig(t.Context(), &emptypb.Empty{})
	wantCode(t, "RefreshConfig", err, codes.PermissionDenied)
	watch, err := agent.WatchGroups(t.Context(), &emptypb.Empty{})
	if err == nil {
		_, err = watch.Recv()
	}
	wantCode(t, "WatchGroups", err, codes.PermissionDenied)
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	assert.Equal(t, want, status.Code(err), "%s: %v", what, err)
}
