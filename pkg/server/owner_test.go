// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/clientauth"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// in returns the context of calls from a Kubernetes cluster.
func in(t *testing.T, cluster string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), identifier.KubernetesClusterKey, cluster)
}

func wantOwner(t *testing.T, s *servertest.Server, want string) {
	t.Helper()
	owner, err := clientauth.ReadOwner(t.Context(), s.Storage, "default")
	require.NoError(t, err)
	require.NotNil(t, owner)
	assert.Equal(t, want, owner.KubernetesCluster)
}

// wantRefused expects that no call from a cluster is served.
func wantRefused(t *testing.T, c connected, cluster, owner string) {
	t.Helper()
	err := c.list(in(t, cluster))
	wantCode(t, "a call", err, codes.PermissionDenied)
	for _, text := range []string{cluster, owner, "nstance-admin tenant adopt --tenant default --kubernetes-cluster " + cluster} {
		assert.ErrorContains(t, err, text)
	}
	watch, err := c.WatchGroups(in(t, cluster), &emptypb.Empty{})
	if err == nil {
		_, err = watch.Recv()
	}
	wantCode(t, "a stream", err, codes.PermissionDenied)
	_, err = c.UpsertGroup(in(t, cluster), &nstancev1.UpsertGroupRequest{Key: "main", Config: &nstancev1.GroupConfig{Size: 7}})
	wantCode(t, "a change", err, codes.PermissionDenied)
	_, err = c.RenewCertificate(in(t, cluster), &nstancev1.RenewCertificateRequest{PublicKeyPem: c.key})
	wantCode(t, "a renewal", err, codes.PermissionDenied)
}

func TestTenantBelongsToOneCluster(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		require.NoError(t, c.list(t.Context()), "a call without a cluster")
		owner, err := clientauth.ReadOwner(t.Context(), s.Storage, "default")
		require.NoError(t, err)
		assert.Nil(t, owner, "a call without a cluster recorded an owner")

		require.NoError(t, c.list(in(t, "cluster-1")))
		wantOwner(t, s, "cluster-1")
		wantRefused(t, c, "cluster-2", "cluster-1")
		wantOwner(t, s, "cluster-1")
		require.NoError(t, c.list(t.Context()), "a call without a cluster")
		require.NoError(t, connect(t, s, register(t, s, "other")).list(in(t, "cluster-2")), "another tenant")
		for _, invalid := range []string{"", strings.Repeat("x", 129)} {
			wantCode(t, "an invalid cluster", c.list(in(t, invalid)), codes.InvalidArgument)
		}
		wantCode(t, "two clusters", c.list(metadata.AppendToOutgoingContext(in(t, "cluster-1"), identifier.KubernetesClusterKey, "cluster-1")), codes.InvalidArgument)
	})
}

func TestAdoptedTenant(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		closed, anonymous := c.watch(in(t, "cluster-1")), c.watch(t.Context())
		wantRefused(t, c, "cluster-2", "cluster-1")
		require.NoError(t, clientauth.Adopt(t.Context(), s.Storage, "default", "cluster-2"))
		require.NoError(t, c.list(in(t, "cluster-2")), "the new owner, at once")
		wantClosed(t, closed, codes.PermissionDenied, "cluster-2")
		wantRefused(t, c, "cluster-1", "cluster-2")

		closed = c.watch(in(t, "cluster-2"))
		require.NoError(t, clientauth.Release(t.Context(), s.Storage, "default"))
		wantOpen(t, closed, accessLimit)
		require.NoError(t, c.list(in(t, "cluster-3")), "the next caller")
		wantOwner(t, s, "cluster-3")
		wantClosed(t, closed, codes.PermissionDenied, "cluster-3")
		wantOpen(t, anonymous, 0)
	})
}

// TestUnreadableOwner changes nothing.
func TestUnreadableOwner(t *testing.T) {
	var u unreadable
	inBubble(t, u.intercept, func(t *testing.T, s *servertest.Server) {
		c := connect(t, s, register(t, s, "default"))
		closed := c.watch(in(t, "cluster-1"))
		u.fails.Store(true)
		wantOpen(t, closed, time.Hour)
		require.NoError(t, c.list(in(t, "cluster-1")))
		wantCode(t, "another cluster", c.list(in(t, "cluster-2")), codes.PermissionDenied)
	})
}

// TestServersAgreeOnTheOwner when both have read that there is none, and the operators
// of two clusters call them at the same time.
func TestServersAgreeOnTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := servertest.Start(t, servertest.Options{InMemory: true})
		var attempts sync.WaitGroup
		attempts.Add(2)
		second := startBeside(t, first, "us-west-2b", &attempts)
		third := startBeside(t, first, "us-west-2c", &attempts)
		certificate := issue(t, first, "default", time.Hour)
		errs := map[string]error{}
		var mu sync.Mutex
		var callers sync.WaitGroup
		for cluster, s := range map[string]*servertest.Server{"cluster-1": second, "cluster-2": third} {
			c := connect(t, s, certificate)
			callers.Go(func() {
				err := c.list(in(t, cluster))
				mu.Lock()
				defer mu.Unlock()
				errs[cluster] = err
			})
		}
		callers.Wait()
		owner, err := clientauth.ReadOwner(t.Context(), first.Storage, "default")
		require.NoError(t, err)
		for cluster, err := range errs {
			want := codes.PermissionDenied
			if cluster == owner.KubernetesCluster {
				want = codes.OK
			}
			wantCode(t, cluster, err, want)
		}
		assert.Len(t, errs, 2)
	})
}

// startBeside starts the server of another shard of the same cluster. It stores no owner
// before attempts is done.
func startBeside(t *testing.T, first *servertest.Server, shard string, attempts *sync.WaitGroup) *servertest.Server {
	t.Helper()
	s := servertest.Prepare(t, servertest.Options{InMemory: true, Shard: shard, Authority: first.Authority})
	_, err := first.Storage.Create(t.Context(), storage.ConfigKey(shard), s.ReadFile(storage.ConfigKey(shard)))
	require.NoError(t, err)
	s.Storage = storagetest.Intercepted{Store: first.Storage, Intercept: func(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
		if call.Operation == "Create" && call.Key == storage.TenantKey("default") {
			attempts.Done()
			attempts.Wait()
		}
		return do(ctx)
	}}
	s.Launch()
	s.UntilListening()
	s.UntilHealthy()
	return s
}
