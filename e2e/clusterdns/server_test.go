// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clusterdns

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// Names of Services are resolved by the resolver of Go, which Pods use. Any other name does
// not exist.
func TestNamesOfServices(t *testing.T) {
	services, endpointSlices := newIndexer(), newIndexer()
	for name, ip := range map[string]string{"db": "10.0.0.1", "db-headless": corev1.ClusterIPNone, "empty": corev1.ClusterIPNone} {
		require.NoError(t, services.Add(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "store", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip},
		}))
	}
	require.NoError(t, endpointSlices.Add(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "store", Name: "db-headless-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db-headless"},
		},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}},
			{Addresses: []string{"10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}},
			{Addresses: []string{"10.1.0.3"}},
			{Addresses: []string{"2001:db8::1"}},
		},
	}))
	resolver := start(t, &server{
		services: corelisters.NewServiceLister(services), endpointSlices: discoverylisters.NewEndpointSliceLister(endpointSlices),
	})
	for name, want := range map[string][]string{
		"db.store.svc.cluster.local.":          {"10.0.0.1"},
		"DB-headless.store.svc.cluster.local.": {"10.1.0.1", "10.1.0.3"},
	} {
		addresses, err := resolver.LookupHost(t.Context(), name)
		require.NoError(t, err, name)
		assert.ElementsMatch(t, want, addresses, name)
	}
	for _, name := range []string{
		"empty.store.svc.cluster.local.", "db.other.svc.cluster.local.", "store.svc.cluster.local.", "db.store.svc.example.com.", "example.com.",
	} {
		_, err := resolver.LookupHost(t.Context(), name)
		var failure *net.DNSError
		require.ErrorAs(t, err, &failure, name)
		assert.True(t, failure.IsNotFound, "%s: %v", name, err)
	}
}

// A query that cannot be parsed has no response, and the next query has.
func TestDamagedQueries(t *testing.T) {
	s := &server{services: corelisters.NewServiceLister(newIndexer()), endpointSlices: discoverylisters.NewEndpointSliceLister(newIndexer())}
	for _, query := range []string{"", "x", "\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xff"} {
		_, err := s.respond([]byte(query))
		require.Error(t, err, "%q", query)
	}
}

func newIndexer() cache.Indexer {
	return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// start serves until the end of the test, and returns a resolver that uses the server.
func start(t *testing.T, s *server) *net.Resolver {
	t.Helper()
	connection, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- s.serve(t.Context(), connection) }()
	t.Cleanup(func() {
		require.NoError(t, connection.Close())
		require.NoError(t, <-stopped)
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", connection.LocalAddr().String())
	}}
}
