// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/informer"
	"nstance.dev/operator/pkg/server/clientauth"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// operatorOf returns the pool and the cache of an operator in a Kubernetes cluster.
func operatorOf(t *testing.T, server *servertest.Server, cluster string) (*Pool, *informer.Groups) {
	t.Helper()
	p := New(Options{
		Credentials: func(string) credentials.TransportCredentials {
			return server.Credentials(pki.Client{ID: servertest.ClusterID, Tenant: "default", Role: pki.RoleOperator})
		},
		KubernetesCluster: cluster,
	})
	p.options = append(p.options, grpc.WithContextDialer(server.DialAddress))
	p.Set(map[string]shard.Endpoint{"a": endpoint(server.Addr)})
	groups := informer.NewGroups(informer.Options{})
	runtest.Start(t, func(ctx context.Context) {
		p.Run(ctx, func(ctx context.Context, id string, client nstancev1.OperatorServiceClient) {
			groups.Serve(ctx, id, client)
		})
	})
	return p, groups
}

// wantOtherCluster expects that the shard is not reachable because of the cluster, and
// that its groups are kept.
func wantOtherCluster(t *testing.T, p *Pool, groups *informer.Groups, cached int) {
	t.Helper()
	reachable, reason := groups.Reachable("a")
	assert.False(t, reachable)
	assert.True(t, shard.IsOtherCluster(reason), "the reason is %v", reason)
	assert.False(t, shard.IsUnreachable(reason))
	assert.Len(t, groups.List("a"), cached)
	_, err := p.UpsertGroup(t.Context(), "a", "main", shard.GroupConfig{Size: 0})
	assert.True(t, shard.IsOtherCluster(err), "the error is %v", err)
	assert.False(t, shard.IsRejected(err))
}

// TestTenantOfAnotherCluster: one of two operators is served. The other one keeps what
// it knows, tries again with a backoff, and takes over when an administrator decides so.
func TestTenantOfAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := servertest.Start(t, servertest.Options{InMemory: true, Shard: "a", Groups: `{"default": {"main": {"template": "worker", "size": 2}}}`})
		first, firstGroups := operatorOf(t, server, "cluster-1")
		<-time.After(10 * time.Second)
		second, secondGroups := operatorOf(t, server, "cluster-2")
		<-time.After(time.Minute)
		reachable, reason := firstGroups.Reachable("a")
		assert.True(t, reachable, "%v", reason)
		wantOtherCluster(t, second, secondGroups, 0)
		// A list and two watches, each at least every 15 s, and the lists of the first.
		before := len(server.Calls())
		<-time.After(10 * time.Minute)
		assert.Less(t, len(server.Calls())-before, 10*60*3/5, "calls in ten minutes")

		require.NoError(t, clientauth.Adopt(t.Context(), server.Storage, "default", "cluster-2"))
		<-time.After(time.Minute)
		reachable, reason = secondGroups.Reachable("a")
		assert.True(t, reachable, "%v", reason)
		assert.Len(t, secondGroups.List("a"), 1)
		wantOtherCluster(t, first, firstGroups, 1)
		group, _ := secondGroups.Get("a", "main")
		assert.Equal(t, int32(2), group.Size)
	})
}
