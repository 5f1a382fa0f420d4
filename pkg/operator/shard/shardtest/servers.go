// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardtest

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/identity"
	"nstance.dev/operator/pkg/operator/shard/informer"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Servers are real shard servers, with an operator's connections to them and caches of them.
type Servers struct {
	*connpool.Pool
	Groups  *informer.Groups
	Notices *informer.Notices
	// ByID are the servers that StartServers started. Authority is the certificate authority
	// of their cluster, Identity the identity of the operator.
	ByID      map[string]*servertest.Server
	Authority *pki.Authority
	Identity  *identity.Identity
	// Known has the known instances for Groups; it must be set before Connect.
	Known map[string]informer.Known
	// Wrap wraps the clients of the caches; it may be nil.
	Wrap func(nstancev1.OperatorServiceClient) nstancev1.OperatorServiceClient

	t testing.TB
	// confirmed has the confirmed address of each shard.
	confirmed sync.Map
}

// StartServers starts a server for each of options, and sets its authority. Connect connects
// to them.
func StartServers(t testing.TB, options ...servertest.Options) *Servers {
	t.Helper()
	s := &Servers{
		Notices:   informer.NewNotices(),
		ByID:      map[string]*servertest.Server{},
		Authority: pkitest.NewAuthority(t),
		Identity:  &identity.Identity{},
		t:         t,
	}
	s.Groups = informer.NewGroups(informer.Options{
		KnownInstances: func() map[string]informer.Known { return s.Known },
		Confirmed: func(shard, address string) (bool, string) {
			confirmed, _ := s.confirmed.Load(shard)
			return confirmed == address, "confirm the address"
		},
	})
	s.SetIdentity("operator")
	s.Pool = connpool.New(connpool.Options{Credentials: s.Identity.Credentials(servertest.ClusterID)})
	endpoints := map[string]shard.Endpoint{}
	for _, o := range options {
		o.Authority = s.Authority
		s.ByID[o.Shard] = servertest.Start(t, o)
		endpoints[o.Shard] = shard.Endpoint{Operator: s.ByID[o.Shard].Addr}
	}
	s.Set(endpoints)
	return s
}

// SetIdentity replaces the operator's certificate.
func (s *Servers) SetIdentity(id string) {
	s.t.Helper()
	certPEM, keyPEM := pkitest.Operator(s.t, s.Authority, id, "default")
	require.NoError(s.t, s.Identity.Set(certPEM, keyPEM, s.Authority.CertificatePEM()))
}

// Confirm confirms the address of a shard.
func (s *Servers) Confirm(shard, address string) { s.confirmed.Store(shard, address) }

// Connect connects to the servers until the test is over. It must be called after the
// controllers have registered their handlers.
func (s *Servers) Connect() {
	runtest.Start(s.t, func(ctx context.Context) {
		s.Run(ctx, func(ctx context.Context, shard string, client nstancev1.OperatorServiceClient) {
			if s.Wrap != nil {
				client = s.Wrap(client)
			}
			var caches sync.WaitGroup
			caches.Go(func() { s.Groups.Serve(ctx, shard, client) })
			caches.Go(func() { s.Notices.Serve(ctx, shard, client) })
			caches.Wait()
		})
	})
}

// AwaitReachable waits until the shards are reachable. Without ids it waits for all shards.
func (s *Servers) AwaitReachable(ids ...string) {
	s.t.Helper()
	if len(ids) == 0 {
		ids = s.Shards()
	}
	runtest.Eventually(s.t, "the shards are reachable", func() bool {
		for _, id := range ids {
			if up, _ := s.Groups.Reachable(id); !up {
				return false
			}
		}
		return true
	})
}

// Resize sets the size of group "workers" of a shard.
func (s *Servers) Resize(id string, size int32, removeFirst ...string) {
	s.t.Helper()
	_, err := s.UpsertGroup(s.t.Context(), id, "workers", shard.GroupConfig{Size: size, RemoveFirst: removeFirst})
	require.NoError(s.t, err)
}
