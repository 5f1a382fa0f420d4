// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// apiServer is an API server of a machine, which responds with its address.
type apiServer struct {
	address  string
	notReady atomic.Bool
}

func startAPIServer(t *testing.T, c *Cluster, address string) *apiServer {
	t.Helper()
	certificate, key, err := c.authority.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: []string{"kubernetes"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	a := &apiServer{address: address}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" && a.notReady.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = io.WriteString(w, address)
	}))
	require.NoError(t, server.Listener.Close())
	server.Listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(address, apiServerPort))
	require.NoError(t, err)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return a
}

// A machine whose API server fails its health check gets no connection and loses those that it has, and gets
// connections again when it is ready.
func TestTheLoadBalancerChecksEachMachine(t *testing.T) {
	c := newCluster(t)
	a, b := startAPIServer(t, c, "127.77.0.1"), startAPIServer(t, c, "127.77.0.2")
	check := func() { c.balancer.check(t.Context(), []string{a.address, b.address}) }
	open := func() (*http.Client, string) {
		t.Helper()
		transport := c.balancer.health.Transport.(*http.Transport).Clone()
		transport.DisableKeepAlives = false
		t.Cleanup(transport.CloseIdleConnections)
		client := &http.Client{Transport: transport}
		return client, get(t.Context(), t, client, c.balancer.address())
	}
	check()
	var kept *http.Client
	machines := map[string]int{}
	for range 4 {
		client, machine := open()
		machines[machine]++
		if machine == a.address {
			kept = client
		}
	}
	assert.Equal(t, map[string]int{a.address: 2, b.address: 2}, machines)

	a.notReady.Store(true)
	check()
	assert.Equal(t, a.address, get(t.Context(), t, kept, c.balancer.address()), "one failed check removes no machine")
	check()
	until(t, stepTimeout, "the connection is closed, and the next one is to the other machine", func(ctx context.Context) error {
		if machine := get(ctx, t, kept, c.balancer.address()); machine != b.address {
			return fmt.Errorf("machine %s responds", machine)
		}
		return nil
	})
	for range 2 {
		_, machine := open()
		assert.Equal(t, b.address, machine)
	}

	a.notReady.Store(false)
	check()
	machines = map[string]int{}
	for range 4 {
		_, machine := open()
		machines[machine]++
	}
	assert.Equal(t, map[string]int{a.address: 2, b.address: 2}, machines)
	// A machine that was removed from Docker gets no connection at once, and the last one keeps its connections.
	c.balancer.check(t.Context(), []string{a.address})
	assert.Len(t, c.balancer.candidates(), 1)
	a.notReady.Store(true)
	for range failuresToRemove {
		c.balancer.check(t.Context(), []string{a.address})
	}
	assert.True(t, c.balancer.candidates()[0].ready)
}

// get returns what a machine behind the load balancer responds.
func get(ctx context.Context, t *testing.T, client *http.Client, address string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/", nil)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}
