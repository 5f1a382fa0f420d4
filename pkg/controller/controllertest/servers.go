// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/connpool"
	"nstance.dev/operator/pkg/shard/identity"
	"nstance.dev/operator/pkg/shard/informer"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Servers are real shard servers, and an operator's connections and caches of them.
type Servers struct {
	*connpool.Pool
	Groups  *informer.Groups
	Notices *informer.Notices
	// ByID are the servers that StartServers started, and Authority is the certificate
	// authority of their cluster.
	ByID      map[string]*servertest.Server
	Authority *pki.Authority
	// Wrap replaces the clients that the caches read from; nil for no change.
	Wrap func(nstancev1.OperatorServiceClient) nstancev1.OperatorServiceClient

	t testing.TB
}

// StartServers starts a server for each of options, whose authority it sets, and
// connects to all of them once the caller calls Connect.
func StartServers(t testing.TB, options ...servertest.Options) *Servers {
	t.Helper()
	authority, err := pki.NewAuthority(servertest.ClusterID)
	require.NoError(t, err)
	s := &Servers{
		Pool:    connpool.New(connpool.Options{Credentials: newIdentity(t, authority).TransportCredentials()}),
		Groups:  informer.NewGroups(),
		Notices: informer.NewNotices(),
		ByID:    map[string]*servertest.Server{}, Authority: authority,
		t: t,
	}
	endpoints := map[string]shard.Endpoint{}
	for _, o := range options {
		o.Authority = authority
		s.ByID[o.Shard] = servertest.Start(t, o)
		endpoints[o.Shard] = shard.Endpoint{Operator: s.ByID[o.Shard].Addr}
	}
	s.Set(endpoints)
	return s
}

// Use has a controller work with the servers.
func (s *Servers) Use(d *controller.Dependencies) {
	d.Shards, d.NamedShards, d.ShardClient = s.Pool, s.Pool, s.Pool
	d.Groups, d.Notices = s.Groups, s.Notices
}

// Connect connects to the servers until the test is over. It is called after the
// controllers have registered their handlers.
func (s *Servers) Connect() {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(s.t, ktesting.NewConfig())))
	var running sync.WaitGroup
	running.Go(func() {
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
	s.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// AwaitReachable waits until the shards are reachable, all of them without ids.
func (s *Servers) AwaitReachable(ids ...string) {
	s.t.Helper()
	if len(ids) == 0 {
		ids = s.Shards()
	}
	Eventually(s.t, "the shards are reachable", func() bool {
		for _, id := range ids {
			if up, _ := s.Groups.Reachable(id); !up {
				return false
			}
		}
		return true
	})
}

func newIdentity(t testing.TB, authority *pki.Authority) *identity.Identity {
	t.Helper()
	certPEM, keyPEM, err := authority.IssueClient(pki.Client{ID: "operator", Tenant: "default", Role: pki.RoleOperator}, time.Hour)
	require.NoError(t, err)
	id := &identity.Identity{}
	require.NoError(t, id.Set(certPEM, keyPEM, authority.CertificatePEM()))
	return id
}
