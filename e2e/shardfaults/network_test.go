// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardfaults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/shardrelay"
	"nstance.dev/operator/e2e/tcpproxy"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func networkFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "the network loses all packets to all shards", Happen: lost((*tcpproxy.Proxy).Cut, shardIDs...)},
		{Name: "the network loses what a shard sends", Happen: lost((*tcpproxy.Proxy).CutResponses, shardIDs[1])},
		{Name: "the connections of all shards break", Happen: func(t *testing.T, scaleUp testcluster.ScaleUp) {
			proxies := throughProxies(t, shardIDs...)
			scaleUp.Begin(t)
			for range 3 {
				untilConnected(t, proxies...)
				for _, proxy := range proxies {
					proxy.Disconnect()
				}
			}
		}},
		{Name: "a shard responds late", Happen: slow},
	}, testcluster.OnlyInFull(
		testcluster.Fault{Name: "the network loses all packets to a shard", Happen: lost((*tcpproxy.Proxy).Cut, shardIDs[0])},
	)...)
}

// TestRejections is TestShardFaults with a shard that rejects changes of a group, with a code for
// each pool, until the operator has retried them.
func TestRejections(t *testing.T) {
	var mu sync.Mutex
	codeOf, rejections := map[string]codes.Code{}, map[string]int{}
	const times = 3
	throughRelay(t, &shardrelay.Relay{Request: func(_ context.Context, request proto.Message) error {
		upsert, ok := request.(*nstancev1.UpsertGroupRequest)
		if !ok {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		code, rejected := codeOf[upsert.GetKey()]
		if !rejected || rejections[upsert.GetKey()] == times {
			return nil
		}
		rejections[upsert.GetKey()]++
		return status.Error(code, "injected by a test")
	}})
	rejecting := func(code codes.Code) func(*testing.T, string) func(context.Context) error {
		return func(_ *testing.T, pool string) func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			codeOf[pool] = code
			return func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				if n := rejections[pool]; n < times {
					return fmt.Errorf("%d of %d requests were rejected", n, times)
				}
				return nil
			}
		}
	}
	env.ExpectNoLossesAtOnce(t, "rejected", []testcluster.PoolFault{
		{Name: "a shard is unavailable for changes", Begin: rejecting(codes.Unavailable)},
		{Name: "a shard is overloaded", Begin: rejecting(codes.ResourceExhausted)},
		{Name: "a shard exceeds every deadline", Begin: rejecting(codes.DeadlineExceeded)},
		{Name: "a shard does not accept the certificate of the operator", Begin: rejecting(codes.Unauthenticated)},
	}, func() {})
}

// throughProxies has the operator reach shards through proxies until the end of the test.
func throughProxies(t *testing.T, shards ...string) []*tcpproxy.Proxy {
	t.Helper()
	addresses := addressesOf(t)
	var proxies []*tcpproxy.Proxy
	for _, shard := range shards {
		backend := addresses[shard]
		proxy, err := tcpproxy.Start(context.WithoutCancel(t.Context()), func() (string, error) { return backend, nil })
		require.NoError(t, err)
		t.Cleanup(func() { _ = proxy.Close() })
		proxies = append(proxies, proxy)
		addresses[shard] = proxy.Address
	}
	useAddresses(t, addresses)
	untilConnected(t, proxies...)
	env.UntilShardsReachable(t, pool, metav1.ConditionTrue, v1beta1.ReasonReachable)
	return proxies
}

// untilConnected waits until the operator has connections through all proxies.
func untilConnected(t *testing.T, proxies ...*tcpproxy.Proxy) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, "the operator is connected", func(context.Context) error {
		for _, proxy := range proxies {
			if proxy.Connections() == 0 {
				return fmt.Errorf("not through %s", proxy.Address)
			}
		}
		return nil
	})
}

// addressesOf returns the addresses of the shards in the operator's configuration.
func addressesOf(t *testing.T) map[string]string {
	t.Helper()
	shards, err := env.Kube.CoreV1().ConfigMaps(installation.Namespace).Get(t.Context(), "nstance-shards", metav1.GetOptions{})
	require.NoError(t, err)
	return shards.Data
}

// useAddresses gives the operator other addresses of shards until the end of the test.
func useAddresses(t *testing.T, addresses map[string]string) {
	t.Helper()
	t.Cleanup(env.SaveConfigMap(t, "nstance-shards"))
	env.EditShards(t, func(data map[string]string) { maps.Copy(data, addresses) })
}

// lost is a network that loses packets until the operator reports it.
func lost(cut func(*tcpproxy.Proxy), shards ...string) func(*testing.T, testcluster.ScaleUp) {
	return func(t *testing.T, scaleUp testcluster.ScaleUp) {
		proxies := throughProxies(t, shards...)
		scaleUp.Begin(t)
		for _, proxy := range proxies {
			cut(proxy)
			defer proxy.Heal()
		}
		untilUnreachable(t)
	}
}

// slow is a shard that receives every request after two seconds.
func slow(t *testing.T, scaleUp testcluster.ScaleUp) {
	relay := &shardrelay.Relay{Request: func(ctx context.Context, _ proto.Message) error {
		select {
		case <-time.After(2 * time.Second):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	throughRelay(t, relay)
	env.UntilShardsReachable(t, pool, metav1.ConditionTrue, v1beta1.ReasonReachable)
	scaleUp.Begin(t)
	scaleUp.UntilShardsRun(t)
}

// throughRelay has the operator reach the first shard through a relay until the end of the
// test.
func throughRelay(t *testing.T, relay *shardrelay.Relay) {
	t.Helper()
	var requests atomic.Int64
	request := relay.Request
	relay.Request = func(ctx context.Context, message proto.Message) error {
		requests.Add(1)
		return request(ctx, message)
	}
	address, err := relay.Start(t.Context(), env.Installation, shardIDs[0])
	require.NoError(t, err)
	useAddresses(t, map[string]string{shardIDs[0]: address})
	testcluster.Eventually(t, time.Minute, "the operator uses the relay", func(context.Context) error {
		if requests.Load() == 0 {
			return errors.New("no request")
		}
		return nil
	})
}
