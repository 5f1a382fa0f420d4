// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"crypto/ed25519"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

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

// TestRenewedCertificates renews certificates that live for a short time after two thirds
// of it, for many lifetimes: no call is rejected, none fails twice in a row, and the
// connection is opened again about once per lifetime.
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
			next, err := p.RenewCertificate(t.Context(), "a", publicKeyPEM)
			if err != nil {
				next, err = p.RenewCertificate(t.Context(), "a", publicKeyPEM)
			}
			require.NoError(t, err)
			set(next)
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
