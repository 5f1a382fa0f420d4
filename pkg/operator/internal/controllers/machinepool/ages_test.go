// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/testing/tier"
)

// moment is what the API server had at a time. Objects are never changed once they are in it.
type moment struct {
	pool        *v1beta1.NstanceMachinePool
	machinePool *clusterv1.MachinePool
	shardGroups []*v1beta1.NstanceShardGroup
}

// history is a pool whose users change it while a leader syncs it now and then.
type history struct {
	*harness
	r           *rand.Rand
	machinePool *clusterv1.MachinePool
	moments     []moment
	log         []string
}

func (s *history) logf(format string, a ...any) { s.log = append(s.log, fmt.Sprintf(format, a...)) }

func newHistory(t *testing.T, r *rand.Rand) *history {
	t.Helper()
	s := &history{harness: newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0, "c": 0}), newPool("a", "b", "c")), r: r}
	replicas := r.Int32N(9)
	s.machinePool = machinePool("workers", &replicas)
	s.logf("replicas %d", replicas)
	s.lead()
	for range 2 + r.IntN(8) {
		s.change()
	}
	return s
}

// lead makes the caches equal to the API server and syncs the pool.
func (s *history) lead() {
	s.T.Helper()
	s.show(len(s.moments), len(s.moments), len(s.moments))
	writes, _, err := s.sync()
	require.NoError(s.T, err)
	s.logf("the leader writes %q", writes)
	s.record()
}

func (s *history) record() {
	s.T.Helper()
	now := moment{pool: s.pool().DeepCopy(), machinePool: s.machinePool.DeepCopy()}
	for _, shard := range []string{"a", "b", "c"} {
		if group := s.shardGroup(shard); group != nil {
			now.shardGroups = append(now.shardGroups, group.DeepCopy())
		}
	}
	s.moments = append(s.moments, now)
}

// change is a change by a user, or a sync.
func (s *history) change() {
	s.T.Helper()
	switch s.r.IntN(8) {
	case 0, 1:
		replicas := s.r.Int32N(9)
		s.machinePool = s.machinePool.DeepCopy()
		s.machinePool.Spec.Replicas = &replicas
		s.logf("replicas %d", replicas)
	case 2, 3:
		shards := []v1beta1.Identifier{"a", "b", "c"}
		s.r.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
		shards = shards[:1+s.r.IntN(3)]
		s.edit(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.Shards = shards })
		s.logf("shards %q", shards)
	case 4:
		paused := s.r.IntN(2) == 0
		s.edit(func(pool *v1beta1.NstanceMachinePool) { setPaused(&pool.Annotations, paused) })
		s.logf("pool paused: %t", paused)
	case 5:
		paused := s.r.IntN(2) == 0
		s.machinePool = s.machinePool.DeepCopy()
		setPaused(&s.machinePool.Annotations, paused)
		s.logf("MachinePool paused: %t", paused)
	default:
		s.lead()
		return
	}
	s.record()
}

// edit changes the pool on the API server, which counts the generation.
func (s *history) edit(change func(*v1beta1.NstanceMachinePool)) {
	s.T.Helper()
	pool := s.pool().DeepCopy()
	change(pool)
	s.Update(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"), pool)
}

func setPaused(annotations *map[string]string, paused bool) {
	*annotations = nil
	if paused {
		*annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	}
}

// show makes each cache as old as a moment, or equal to the API server if there is no such moment.
func (s *history) show(pool, machinePool, shardGroups int) {
	s.T.Helper()
	s.Show()
	s.CAPI.Show(s.T, s.machinePool)
	replace := func(informer cache.SharedIndexInformer, objects ...any) {
		require.NoError(s.T, informer.GetIndexer().Replace(objects, "1"))
	}
	shown := s.machinePool
	if machinePool < len(s.moments) {
		shown = s.moments[machinePool].machinePool
	}
	replace(s.Informers.MachinePools, shown)
	if pool < len(s.moments) {
		replace(s.Informers.Nstance.NstanceMachinePools().Informer(), s.moments[pool].pool)
	}
	if shardGroups < len(s.moments) {
		var groups []any
		for _, group := range s.moments[shardGroups].shardGroups {
			groups = append(groups, group)
		}
		replace(s.Informers.Nstance.NstanceShardGroups().Informer(), groups...)
	}
}

// Each cache of a new leader is as old as its own watch, and it has no writes to wait for. Whatever
// it sees, it makes no size smaller, and deletes no shard group, unless a leader with the newest
// caches does so too.
func TestCachesOfDifferentAgesShrinkNothing(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(1, 4)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			for run := range tier.Pick(300, 1000) {
				testCachesOfDifferentAges(t, rand.New(rand.NewPCG(seed, uint64(run))))
			}
		})
	}
}

func testCachesOfDifferentAges(t *testing.T, r *rand.Rand) {
	t.Helper()
	s := newHistory(t, r)
	// The next process has caches and metrics of its own.
	next := controllertest.NewHarness(t, s.Fake)
	s.Informers, s.Metrics = next.Informers, next.Metrics
	var err error
	s.controller, err = New(s.Dependencies)
	require.NoError(t, err)

	newest := len(s.moments)
	s.show(newest, newest, newest)
	observed, err := s.controller.observe(s.pool())
	require.NoError(t, err)
	s.controller.observeGuarded(&observed)
	wanted := plan(observed)
	least := map[string]int32{}
	for _, group := range s.moments[newest-1].shardGroups {
		if group.DeletionTimestamp.IsZero() {
			least[string(group.Spec.Shard)] = group.Spec.Size
		}
	}
	for i, size := range wanted.sizes {
		id := observed.shards[i].id
		if current, found := least[id]; found {
			least[id] = min(current, size)
		}
	}
	for _, group := range wanted.deleteShardGroups {
		delete(least, string(group.Spec.Shard))
	}

	pool, machinePool, shardGroups := s.r.IntN(newest), s.r.IntN(newest), s.r.IntN(newest)
	s.show(pool, machinePool, shardGroups)
	s.logf("a leader sees the pool of %d, the MachinePool of %d and the shard groups of %d of %d", pool, machinePool, shardGroups, newest)
	// A conflict is an answer of the API server to an old cache.
	writes, _, err := s.sync()
	s.logf("it writes %q, error %v", writes, err)
	for _, id := range slices.Sorted(maps.Keys(least)) {
		group := s.shardGroup(id)
		switch {
		case group == nil || !group.DeletionTimestamp.IsZero():
			t.Fatalf("shard group %s was deleted\n%s", id, strings.Join(s.log, "\n"))
		case group.Spec.Size < least[id]:
			t.Fatalf("shard group %s has size %d, want at least %d\n%s", id, group.Spec.Size, least[id], strings.Join(s.log, "\n"))
		}
	}
}

// A shard group that is smaller than the cache says is not written, so no conflict protects the
// other shard groups.
func TestStaleShardGroupShrinksNoOther(t *testing.T) {
	pool := newPool("a", "b")
	h := newHarness(t, withSizes(map[string]int32{"a": 2, "b": 2}), pool, ready(newShardGroup(pool, "a", 2)), ready(newShardGroup(pool, "b", 2)))
	h.scale(3)
	smaller := h.shardGroup("a").DeepCopy()
	smaller.Spec.Size = 1
	h.Update(v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups"), smaller)
	h.expect()
	h.expectSizes(map[string]int32{"a": 1, "b": 2})
	h.Show()
	h.expect(poolStatus)
}
