// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/identity"
	"nstance.dev/operator/pkg/operator/shard/informer"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	"nstance.dev/operator/pkg/testing/tier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// slowServer never replies to UpsertGroup, and has no group to delete.
type slowServer struct {
	nstancev1.UnimplementedOperatorServiceServer
}

func (slowServer) UpsertGroup(ctx context.Context, _ *nstancev1.UpsertGroupRequest) (*nstancev1.GroupStatus, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (slowServer) DeleteGroup(context.Context, *nstancev1.DeleteGroupRequest) (*emptypb.Empty, error) {
	return nil, status.Error(codes.NotFound, "no such group")
}

// withSlowServer runs test on a fake clock. Shard "a" is a slowServer, and shard
// "down" has no server.
func withSlowServer(t *testing.T, test func(t *testing.T, p *Pool)) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		server := grpc.NewServer()
		nstancev1.RegisterOperatorServiceServer(server, slowServer{})
		go func() { _ = server.Serve(n.listen("a:1")) }()
		t.Cleanup(server.Stop)
		p := New(insecureOptions)
		p.options = append(p.options, grpc.WithContextDialer(n.dial))
		p.Set(map[string]shard.Endpoint{"a": endpoint("a:1"), "down": endpoint("down:1")})
		runtest.Start(t, func(ctx context.Context) {
			p.Run(ctx, func(ctx context.Context, _ string, _ nstancev1.OperatorServiceClient) { <-ctx.Done() })
		})
		synctest.Wait()
		test(t, p)
	})
}

func TestCallsFailInTime(t *testing.T) {
	withSlowServer(t, func(t *testing.T, p *Pool) {
		start := time.Now()
		_, err := p.UpsertGroup(t.Context(), "a", "workers", shard.GroupConfig{Size: 1})
		if !shard.IsUnreachable(err) || status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a server that does not reply: got error %v", err)
		}
		if got := time.Since(start); got != CallTimeout {
			t.Errorf("a server that does not reply: failed after %v, want %v", got, CallTimeout)
		}
		for _, want := range []string{"upsert group", `"workers"`, `"a"`} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s is not in the error: %v", want, err)
			}
		}

		start = time.Now()
		_, err = p.UpsertGroup(t.Context(), "down", "workers", shard.GroupConfig{Size: 1})
		if !shard.IsUnreachable(err) || !strings.Contains(shard.Message(err), "refused") {
			t.Errorf("a server that refuses connections: got error %v", err)
		}
		if got := time.Since(start); got > time.Second {
			t.Errorf("a server that refuses connections: failed after %v, want at once", got)
		}
	})
}

func TestCallsAreOverAtTheDeadline(t *testing.T) {
	withSlowServer(t, func(t *testing.T, p *Pool) {
		for name, left := range map[string]time.Duration{
			"the deadline is near": CallTimeout / 3,
			"the deadline is now":  0,
			"the deadline is over": -time.Hour,
		} {
			start := time.Now()
			p.deadline = func() time.Time { return start.Add(left) }
			_, err := p.UpsertGroup(t.Context(), "a", "workers", shard.GroupConfig{Size: 1})
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("%s: got error %v", name, err)
			}
			if sent := !errors.Is(err, errDeadline); sent != (left > 0) {
				t.Errorf("%s: sent: %t, got error %v", name, sent, err)
			}
			if got := time.Since(start); got != max(0, left) {
				t.Errorf("%s: failed after %v", name, got)
			}
		}
	})
}

func TestCallCanceledByTheCallerIsNotUnreachable(t *testing.T) {
	withSlowServer(t, func(t *testing.T, p *Pool) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := p.UpsertGroup(ctx, "a", "workers", shard.GroupConfig{Size: 1})
		if !errors.Is(err, context.Canceled) || shard.IsUnreachable(err) {
			t.Errorf("got error %v", err)
		}
	})
}

func TestCallToShardThatIsBeingRemoved(t *testing.T) {
	withSlowServer(t, func(t *testing.T, p *Pool) {
		time.AfterFunc(time.Second, func() { p.Set(nil) })
		_, err := p.UpsertGroup(t.Context(), "a", "workers", shard.GroupConfig{Size: 1})
		if !shard.IsUnreachable(err) {
			t.Errorf("the call in progress: got error %v", err)
		}
		_, err = p.UpsertGroup(t.Context(), "a", "workers", shard.GroupConfig{Size: 1})
		if !errors.Is(err, shard.ErrUnknownShard) {
			t.Errorf("the next call: got error %v", err)
		}
		if err := p.DeleteGroup(t.Context(), "a", "workers", nil); !errors.Is(err, shard.ErrUnknownShard) {
			t.Errorf("the deletion: got error %v", err)
		}
	})
}

func TestDeletingAMissingGroupSucceeds(t *testing.T) {
	withSlowServer(t, func(t *testing.T, p *Pool) {
		if err := p.DeleteGroup(t.Context(), "a", "workers", nil); err != nil {
			t.Error(err)
		}
	})
}

func TestCallWithoutRun(t *testing.T) {
	p := New(insecureOptions)
	p.Set(map[string]shard.Endpoint{"a": endpoint("a:1")})
	if _, err := p.UpsertGroup(t.Context(), "a", "workers", shard.GroupConfig{}); !shard.IsUnreachable(err) {
		t.Errorf("got error %v", err)
	}
}

// TestRenewedCertificates renews short-lived certificates after two thirds of their lifetime,
// for many lifetimes: no call is rejected, no call fails twice in a row, and the connection is
// opened again about once per lifetime.
func TestRenewedCertificates(t *testing.T) {
	for _, tc := range []struct {
		ttl       time.Duration
		lifetimes int
		// interval is the time between calls.
		interval time.Duration
	}{
		{15 * time.Second, 6, tier.Pick(100*time.Millisecond, 20*time.Millisecond)},
		{5 * time.Minute, 3, tier.Pick(time.Second, 100*time.Millisecond)},
		// The grace period is over before the certificate expires.
		{time.Hour, 2, tier.Pick(10*time.Second, time.Second)},
	} {
		t.Run(tc.ttl.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRenewedCertificates(t, tc.ttl, tc.lifetimes, tc.interval) })
		})
	}
}

func testRenewedCertificates(t *testing.T, ttl time.Duration, lifetimes int, interval time.Duration) {
	server := servertest.Start(t, servertest.Options{
		InMemory: true, Shard: "a", CertificateTTL: ttl.String(), Groups: `{"default": {"main": {"template": "worker", "size": 1}}}`,
	})
	certPEM, keyPEM, err := server.Authority.IssueClient(pki.Client{ID: servertest.ClusterID, Tenant: "default", Role: pki.RoleOperator}, ttl)
	require.NoError(t, err)
	key, err := keys.ParsePrivate(keyPEM)
	require.NoError(t, err)
	publicKeyPEM, err := keys.EncodePublic(key.Public().(ed25519.PublicKey))
	require.NoError(t, err)
	var id identity.Identity
	set := func(certPEM []byte) { require.NoError(t, id.Set(certPEM, keyPEM, server.Authority.CertificatePEM())) }
	set(certPEM)
	p := New(Options{Credentials: id.Credentials(servertest.ClusterID), KubernetesCluster: "cluster-1"})
	p.options = append(p.options, grpc.WithContextDialer(server.DialAddress), grpc.WithAuthority("localhost"))
	p.Set(map[string]shard.Endpoint{"a": endpoint(server.Addr)})
	groups := informer.NewGroups(informer.Options{})
	runtest.Start(t, func(ctx context.Context) {
		p.Run(ctx, func(ctx context.Context, id string, client nstancev1.OperatorServiceClient) {
			groups.Serve(ctx, id, client)
		})
	})
	synctest.Wait()

	failed := 0
	renewal := time.Now().Add(ttl * 2 / 3)
	end := time.Now().Add(time.Duration(lifetimes) * ttl)
	for time.Now().Before(end) {
		if !time.Now().Before(renewal) {
			next, err := p.RenewCertificate(t.Context(), "a", keys.Request{PublicKeyPEM: publicKeyPEM})
			if err != nil {
				next, err = p.RenewCertificate(t.Context(), "a", keys.Request{PublicKeyPEM: publicKeyPEM})
			}
			require.NoError(t, err)
			set(next.CertificatePEM)
			renewal = time.Now().Add(ttl * 2 / 3)
		}
		_, err := p.UpsertGroup(t.Context(), "a", "main", shard.GroupConfig{Size: 1})
		switch {
		case err == nil:
			failed = 0
		case !shard.IsUnreachable(err):
			t.Fatalf("a call was rejected: %v", err)
		default:
			if failed++; failed > 1 {
				t.Fatalf("a call failed again: %v", err)
			}
		}
		<-time.After(interval)
	}
	if opened := len(server.Calls("WatchGroups")); opened > 2*lifetimes {
		t.Errorf("the watch was opened %d times in %d lifetimes", opened, lifetimes)
	}
	if reachable, reason := groups.Reachable("a"); !reachable {
		assert.True(t, shard.IsUnreachable(reason), "%v", reason)
	}
}
