// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	groupsPerShard = 20
	// maxUptime is the longest time from one kill of a server to the next.
	maxUptime = 300 * time.Millisecond
)

// TestStorm kills servers again and again while twenty groups on each of three shards
// are scaled up and down. Afterwards exactly the requested instances exist.
func TestStorm(t *testing.T) {
	kills, seed := tier.Pick(60, 200), tier.Seeds(t, 1)[0]
	identities := watchIdentities(t)
	storm, calm := context.WithCancel(t.Context())
	var work sync.WaitGroup
	sizes := make([]map[string]int32, len(shardIDs))
	for i, shard := range shardIDs {
		operator := env.ShardClient(t, shard)
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		sizes[i] = map[string]int32{}
		//nolint:contextcheck // A call that began in the storm is finished afterwards.
		work.Go(func() { scale(t, storm.Done(), operator, random, sizes[i]) })
	}
	var killers sync.WaitGroup
	for i, shard := range shardIDs {
		// The first shard gets the remainder.
		times := kills / len(shardIDs)
		if i == 0 {
			times += kills % len(shardIDs)
		}
		random := rand.New(rand.NewPCG(seed, uint64(100+i)))
		killers.Go(func() { killTimes(t, shard, times, random) })
	}
	killers.Wait()
	calm()
	work.Wait()
	for i, shard := range shardIDs {
		operator := env.ShardClient(t, shard)
		for group, size := range sizes[i] {
			require.NoError(t, upsert(t.Context(), operator, group, size))
		}
		testcluster.Eventually(t, timeout, "shard "+shard+" after the storm", func(ctx context.Context) error {
			return settled(ctx, operator, shard, sizes[i])
		})
	}
	identities.check(t)
	t.Logf("%d instances were created", identities.count())
	for i, shard := range shardIDs {
		operator := env.ShardClient(t, shard)
		for group := range sizes[i] {
			deleteGroup(t, operator, group)
		}
		testcluster.Eventually(t, timeout, "shard "+shard+" without groups", func(ctx context.Context) error {
			return settled(ctx, operator, shard, nil)
		})
	}
}

// scale sets sizes at random until calm is closed, and leaves the last requested sizes in sizes.
func scale(t *testing.T, calm <-chan struct{}, operator nstancev1.OperatorServiceClient, random *rand.Rand, sizes map[string]int32) {
	for {
		select {
		case <-calm:
			if len(sizes) == groupsPerShard {
				return
			}
		default:
		}
		group := fmt.Sprintf("group-%02d", random.IntN(groupsPerShard))
		sizes[group] = random.Int32N(6)
		// A call that began in the storm is finished afterwards.
		if err := upsert(t.Context(), operator, group, sizes[group]); err != nil {
			t.Error(err)
			return
		}
	}
}

// killTimes kills the server of a shard repeatedly, at random moments, and starts it
// again each time.
func killTimes(t *testing.T, shard string, times int, random *rand.Rand) {
	component := env.ShardServer(shard)
	for range times {
		moment := time.NewTimer(time.Duration(random.Int64N(int64(maxUptime))))
		<-moment.C
		if err := component.Kill(t.Context()); err != nil {
			t.Errorf("kill the server of shard %s: %v", shard, err)
			return
		}
		if err := component.Start(t.Context()); err != nil {
			t.Errorf("start the server of shard %s: %v", shard, err)
			return
		}
	}
}

func deleteGroup(t testing.TB, operator nstancev1.OperatorServiceClient, group string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "deleting group "+group, func(ctx context.Context) error {
		_, err := operator.DeleteGroup(ctx, &nstancev1.DeleteGroupRequest{Key: group})
		return err
	})
}

// identities are all Nodes that ever existed.
type identities struct {
	mu     sync.Mutex
	uids   map[string]types.UID
	reused []string
}

// watchIdentities watches all Nodes until the end of the test.
func watchIdentities(t *testing.T) *identities {
	t.Helper()
	seen := &identities{uids: map[string]types.UID{}}
	require.NoError(t, testcluster.RunInformer(t.Context(), coreinformers.NewNodeInformer(env.Kube, 0, nil), cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen.add(obj.(*corev1.Node)) },
		UpdateFunc: func(_, obj any) { seen.add(obj.(*corev1.Node)) },
	}))
	return seen
}

func (i *identities) add(node *corev1.Node) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if uid, seen := i.uids[node.Name]; seen && uid != node.UID {
		i.reused = append(i.reused, node.Name)
	}
	i.uids[node.Name] = node.UID
}

func (i *identities) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.uids)
}

// check fails the test when an id was used for more than one instance.
func (i *identities) check(t *testing.T) {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	assert.Empty(t, i.reused, "ids were used again")
}
