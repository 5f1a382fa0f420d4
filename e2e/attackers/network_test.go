// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package attackers

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/testing/tier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// A host without a certificate makes no call, and keeps nobody else out, however many connections
// it opens.
func TestNetwork(t *testing.T) {
	expectAlive(t, machines.component)
	foreign, err := pki.NewAuthority("foreign")
	require.NoError(t, err)
	certPEM, keyPEM, err := foreign.IssueClient(pki.Client{ID: installation.ClusterID, Tenant: installation.Tenant, Role: pki.RoleOperator}, time.Hour)
	require.NoError(t, err)
	old := clientConfig(t, nil, nil)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for _, port := range []int{machines.operator, machines.agent} {
		for name, connection := range map[string]*grpc.ClientConn{
			"no certificate":                   dial(t, at(port), clientConfig(t, nil, nil)),
			"a certificate of another CA":      dial(t, at(port), clientConfig(t, certPEM, keyPEM)),
			"TLS 1.2 and no other certificate": dial(t, at(port), old),
		} {
			_, err := nstancev1.NewOperatorServiceClient(connection).ListGroups(t.Context(), &emptypb.Empty{})
			assert.NoError(t, refused(err, codes.Unavailable), name)
		}
		plain, err := grpc.NewClient(at(port), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = plain.Close() })
		_, err = nstancev1.NewOperatorServiceClient(plain).ListGroups(t.Context(), &emptypb.Empty{})
		assert.NoError(t, refused(err, codes.Unavailable), "no TLS")
	}

	// More connections than there may be of operators. None of them begins a handshake.
	for _, port := range tier.Pick([]int{machines.operator}, []int{machines.operator, machines.agent}) {
		flooded(t, machines.component, func() {
			// So many that the queue of the system alone would take longer than the timeout below.
			stop := holdSilent(t, at(port), 10_000)
			defer stop()
			for range 4 {
				config := issue(t, installation.Tenant, time.Hour)
				want := codes.OK
				if port == machines.agent {
					want = codes.Unimplemented
				}
				// An operator waits for a connection for so long.
				patience := grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second})
				_, err := nstancev1.NewOperatorServiceClient(dial(t, at(port), config, patience, from(elsewhere))).ListGroups(t.Context(), &emptypb.Empty{})
				assert.NoError(t, refusedOr(err, want), "a client during the flood of port %d", port)
			}
		})
	}

	// Connections that were served once and are kept.
	served := 0
	for range 100 {
		conn, err := net.Dial("tcp", at(machines.health))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte("GET /health HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
			continue
		}
		if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
			served++
			_ = response.Body.Close()
		}
	}
	assert.LessOrEqual(t, served, 32, "connections of an address that are kept (docs/server-reference.md#limits)")
	assert.Positive(t, served)
	other := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(elsewhere)}}).DialContext,
	}}
	response, err := other.Get("http://" + at(machines.health) + "/health")
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, response.StatusCode, "another host")
	_ = response.Body.Close()
}

// refusedOr is refused for a code that may be OK.
func refusedOr(err error, code codes.Code) error {
	if code == codes.OK {
		return err
	}
	return refused(err, code)
}

// holdSilent opens connections that send nothing, and opens each again that the server closes, until
// stop is called. It returns when all were open once.
func holdSilent(t *testing.T, address string, count int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var opened, running sync.WaitGroup
	var dialer net.Dialer
	// More than a server that keeps each of them for 5 seconds has places for.
	pace := rate.NewLimiter(2000, 100)
	for range count {
		opened.Add(1)
		first := sync.OnceFunc(opened.Done)
		running.Go(func() {
			defer first()
			for pace.Wait(ctx) == nil {
				conn, err := dialer.DialContext(ctx, "tcp", address)
				if err != nil {
					if !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "cannot assign requested address") {
						t.Logf("a silent connection: %v", err)
					}
					return
				}
				first()
				end := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = conn.Read(make([]byte, 1)) // until the server closes it
				end()
				_ = conn.Close()
			}
		})
	}
	opened.Wait()
	return func() {
		cancel()
		running.Wait()
	}
}
