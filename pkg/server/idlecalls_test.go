// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// callCounter is a storage that counts its calls by operation and key.
type callCounter struct {
	storagetest.Intercepted
	mu    sync.Mutex
	calls map[string]int
}

func newCallCounter(store storage.Store) *callCounter {
	c := &callCounter{calls: map[string]int{}}
	c.Intercepted = storagetest.Intercepted{Store: store, Intercept: c.count}
	return c
}

func (c *callCounter) count(ctx context.Context, call storagetest.Call, do func(context.Context) error) error {
	c.mu.Lock()
	c.calls[call.Operation+" "+call.Key]++
	c.mu.Unlock()
	return do(ctx)
}

// take returns the calls since its last call.
func (c *callCounter) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := maps.Clone(c.calls)
	clear(c.calls)
	return calls
}

// A service charges for each call to a bucket. Leaders without work, each with an operator that is
// connected, of which one leads the cluster, too (docs/calls.md#the-bucket).
func TestCallsOfAnIdleMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := servertest.Options{
			InMemory: true, PollInterval: backend.PollInterval(backend.S3),
			Groups: `{"default": {"main": {"template": "worker", "size": 3}}}`,
		}
		first := servertest.Prepare(t, o)
		o.Shard, o.ID, o.SharedBucket = "us-west-2b", "2", first.Bucket()
		servers := []*servertest.Server{first, servertest.Prepare(t, o)}
		counters := make([]*callCounter, len(servers))
		for n, s := range servers {
			counters[n] = newCallCounter(s.Storage)
			s.Storage = counters[n]
			s.Launch()
			s.UntilListening()
			s.UntilHealthy()
			ctx := metadata.AppendToOutgoingContext(t.Context(), identifier.KubernetesClusterKey, "cluster-of-the-operator")
			watch, err := s.Operator("default").WatchGroups(ctx, &emptypb.Empty{})
			require.NoError(t, err)
			_, err = watch.Recv()
			require.NoError(t, err)
		}
		<-time.After(5 * time.Minute)
		synctest.Wait()
		for _, counter := range counters {
			counter.take()
		}
		const minutes = 10
		<-time.After(minutes * time.Minute)
		synctest.Wait()
		for n, shard := range []string{"us-west-2a", "us-west-2b"} {
			calls := counters[n].take()
			total, ofTheCluster := 0, 0
			for call, count := range calls {
				t.Logf("%s: %s: %.1f in a minute", shard, call, float64(count)/minutes)
				total += count
				switch call {
				case "Replace " + storage.ClusterLeaderKey, "Get " + storage.ClusterLeaderKey, "Get " + storage.AuthoritiesKey:
					ofTheCluster += count
				}
			}
			// Timers of intervals begin at any time.
			assert.LessOrEqual(t, total-ofTheCluster, 25*minutes, "calls of shard %s", shard)
			assert.LessOrEqual(t, ofTheCluster, 17*minutes, "calls of the server of shard %s for the cluster", shard)
			assert.LessOrEqual(t, calls["Get "+storage.ConfigKey(shard)], 4*minutes+1, "reads of the configuration")
			assert.Positive(t, calls["Get "+storage.ConfigKey(shard)], "reads of the configuration")
		}
		for _, s := range servers {
			s.Stop()
		}
	})
}
