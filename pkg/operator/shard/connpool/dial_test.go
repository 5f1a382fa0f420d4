// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/informer"
	"nstance.dev/operator/pkg/operator/shard/internal/conninfo"
	"nstance.dev/operator/pkg/server/clientauth"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// operatorOf returns the pool and the cache of an operator of a Kubernetes cluster.
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

// wantOtherCluster expects that the shard is unreachable because of the cluster, and that its
// groups stay in the cache.
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

// TestTenantOfAnotherCluster: only one of two operators is served. The other keeps its cache,
// retries with a backoff, and takes over if an administrator decides so.
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
		// A list and two watches are retried, each at least every 15 s, and the first operator
		// lists too.
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

// sentID returns the request ids that sendRequestID sends for a call with ctx.
func sentID(ctx context.Context, t *testing.T) []string {
	t.Helper()
	var sent []string
	invoke := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		outgoing, _ := metadata.FromOutgoingContext(ctx)
		sent = outgoing.Get(audit.RequestIDKey)
		return nil
	}
	require.NoError(t, sendRequestID(ctx, "", nil, nil, nil, invoke))
	return sent
}

func TestRequestIDIsSent(t *testing.T) {
	ctx, id := audit.WithNewRequest(t.Context())
	assert.Equal(t, []string{id}, sentID(ctx, t))
	first, second := sentID(t.Context(), t), sentID(t.Context(), t)
	require.Len(t, first, 1)
	assert.True(t, audit.ValidRequestID(first[0]))
	assert.NotEqual(t, first, second)
}

// TestOneRequestIDFromTheCallToTheTerminations: the server logs the id of the client's call
// for the change and for all its consequences, and exactly one line for each.
func TestOneRequestIDFromTheCallToTheTerminations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := audittest.NewLog()
		logger := log.Logger()
		server := servertest.Start(t, servertest.Options{InMemory: true, Shard: "a", Logger: &logger})
		p, groups := operatorOf(t, server, "cluster-1")
		<-time.After(10 * time.Second)
		upsert := func(ctx context.Context, config shard.GroupConfig) {
			t.Helper()
			_, err := p.UpsertGroup(ctx, "a", "workers", config)
			require.NoError(t, err)
			<-time.After(time.Minute)
		}
		settings := shard.GroupSettings{Template: "worker", Vars: map[string]string{"token": "secret-of-a-user"}}
		upsert(t.Context(), shard.GroupConfig{GroupSettings: settings, Size: 3, Revision: &shard.Revision{UID: "u", Generation: 1}})
		log.Expect(t)

		ctx, id := audit.WithNewRequest(t.Context())
		upsert(ctx, shard.GroupConfig{GroupSettings: settings, Size: 1, Revision: &shard.Revision{UID: "u", Generation: 2}})
		upsert(ctx, shard.GroupConfig{GroupSettings: settings, Size: 1, Revision: &shard.Revision{UID: "u", Generation: 2}})
		lines := log.Take()
		var actions []audit.Action
		for _, line := range lines {
			actions = append(actions, line.Action)
			assert.Equal(t, id, line.RequestID(), "%s", line)
			assert.Equal(t, int64(2), line.Values[audit.KeyGeneration], "%s", line)
			assert.Contains(t, line.Values[audit.KeyWriter], "test, certificate ", "%s", line)
			assert.Equal(t, "default", line.Values["tenant"], "%s", line)
		}
		assert.Equal(t, []audit.Action{audit.ShrinkGroup, audit.TerminateInstance, audit.TerminateInstance}, actions)
		assert.Equal(t, "3 1", fmt.Sprint(lines[0].Values[audit.KeyFrom], " ", lines[0].Values[audit.KeyTo]))

		group, _ := groups.Get("a", "workers")
		instance := group.Instances[slices.IndexFunc(group.Instances, func(i shard.Instance) bool { return i.State == "running" })]
		ctx, id = audit.WithNewRequest(t.Context())
		for range 3 {
			_, err := p.DeleteInstance(ctx, "a", instance.ID)
			require.NoError(t, err)
			<-time.After(time.Minute)
		}
		lines = log.Take()
		require.Len(t, lines, 2)
		for i, action := range []audit.Action{audit.DeleteInstance, audit.TerminateInstance} {
			assert.Equal(t, action, lines[i].Action)
			assert.Equal(t, id, lines[i].RequestID())
			assert.Equal(t, instance.ID, lines[i].Values[audit.KeyInstance])
			assert.Equal(t, "requested", lines[i].Values[audit.KeyReason])
		}

		ctx, id = audit.WithNewRequest(t.Context())
		require.NoError(t, p.DeleteGroup(ctx, "a", "workers", &shard.Revision{UID: "u", Generation: 3}))
		require.NoError(t, p.DeleteGroup(ctx, "a", "workers", &shard.Revision{UID: "u", Generation: 3}))
		<-time.After(time.Minute)
		lines = log.Take()
		require.Len(t, lines, 2, "%s", lines)
		for i, action := range []audit.Action{audit.DeleteGroup, audit.TerminateInstance} {
			assert.Equal(t, action, lines[i].Action)
			assert.Equal(t, id, lines[i].RequestID())
		}
		assert.NotContains(t, log.Text(), "secret-of-a-user")
		assert.NotContains(t, log.Text(), "PRIVATE KEY")
	})
}

// Before the groups of a server that names no shard were compared, it gets no call that changes
// something.
func TestCallsToAServerThatIsNotVerified(t *testing.T) {
	nameless := conninfo.New(credentials.TLSInfo{}, "10.0.0.2:8993")
	call := func(ctx context.Context, method string) error {
		_, err := verifiedOnly{}.GetRequestMetadata(credentials.NewContextWithRequestInfo(ctx, credentials.RequestInfo{Method: method, AuthInfo: nameless}))
		return err
	}
	const change, list = nstancev1.OperatorService_UpsertGroup_FullMethodName, nstancev1.OperatorService_ListGroups_FullMethodName
	require.ErrorIs(t, call(t.Context(), change), errNotVerified)
	require.NoError(t, call(t.Context(), list))
	require.NoError(t, call(conninfo.WithVerifying(t.Context()), change), "the query that verifies it")
	nameless.Verify()
	require.NoError(t, call(t.Context(), change))
}
