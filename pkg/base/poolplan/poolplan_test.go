// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolplan

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
)

func newPool(replicas int32, shards ...v1beta1.Identifier) Pool {
	object := &v1beta1.NstanceMachinePool{Spec: v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: shards}}
	return Pool{NstanceMachinePool: object, MachinePool: "workers", Replicas: replicas}
}

// add adds a shard with a shard group.
func (p *Pool) add(id string, size, least int32) *v1beta1.NstanceShardGroup {
	group := &v1beta1.NstanceShardGroup{Spec: v1beta1.NstanceShardGroupSpec{Group: "workers", Shard: v1beta1.Identifier(id), Size: size}}
	shard := NewShard(p.NstanceMachinePool, id, group, 0, least)
	shard.Synced = true
	p.Groups, p.Shards = append(p.Groups, group), append(p.Shards, shard)
	return group
}

// TestImportedSizes: sizes that were imported for other replicas or other shards do not count, because
// the even division of the new ones would wait for ever.
func TestImportedSizes(t *testing.T) {
	imported := func(of, replicas int32, shards ...v1beta1.Identifier) *Pool {
		pool := newPool(replicas, "a", "b")
		for _, id := range []string{"a", "b"} {
			pool.add(id, 1, 0).Spec.Imported = &v1beta1.Division{Replicas: of, Shards: shards}
		}
		return &pool
	}
	assert.True(t, imported(3, 3, "b", "a").HasImportedSizes())
	assert.False(t, imported(3, 4, "a", "b").HasImportedSizes(), "other replicas")
	assert.False(t, imported(3, 3, "a", "b", "c").HasImportedSizes(), "other shards")
	none := imported(3, 3, "a", "b")
	none.Groups[1].Spec.Imported = nil
	assert.False(t, none.HasImportedSizes(), "one without an import")
	none.Groups[1] = nil
	assert.True(t, none.HasImportedSizes(), "a size that the server reports")
	none.Shards[1].Synced = false
	assert.False(t, none.HasImportedSizes(), "a size that no server reports")
}

func TestBelowMinimum(t *testing.T) {
	pool := newPool(4, "a", "b")
	pool.add("a", 3, 3)
	pool.add("b", 3, 2)
	assert.Equal(t, `the shards keep at least 5 instances (a 3, b 2), and MachinePool "workers" has 4 replicas; the sizes stay`, pool.BelowMinimum())
	pool.Replicas, pool.Machines = 5, true
	assert.Empty(t, pool.BelowMinimum())
	pool.Candidates = []distribute.Candidate{{ID: "a1", Shard: "a", Annotated: true}}
	assert.Equal(t, "instance a1 is to be removed, and shard a keeps at least 3 instances; the sizes stay", pool.BelowMinimum())
}

// A loan among other shards has no effect, and a size below the minimum is one that the server does not run.
func TestNewShard(t *testing.T) {
	pool := newPool(3, "a", "b")
	group := pool.add("a", 1, 0)
	group.Spec.RemoveFirst = []string{"a1"}
	group.Spec.Loan = &v1beta1.Loan{Lent: 2, Division: v1beta1.Division{Replicas: 3, Shards: []v1beta1.Identifier{"b", "a"}}}
	got := NewShard(pool.NstanceMachinePool, "a", group, 7, 2)
	assert.Equal(t, distribute.Shard{ID: "a", Size: 2, Min: 2, HasShardGroup: true, RemoveFirst: []string{"a1"}, Stock: distribute.Stock{Lent: 2, LentOf: 3}}, got)
	group.Spec.Loan.Shards = []v1beta1.Identifier{"a", "c"}
	assert.Zero(t, NewShard(pool.NstanceMachinePool, "a", group, 0, 0).Stock)
	assert.Equal(t, distribute.Shard{ID: "b", Size: 7}, NewShard(pool.NstanceMachinePool, "b", nil, 7, 0))
}

func TestAtOnce(t *testing.T) {
	guards := func(n intstr.IntOrString) *v1beta1.ScaleDownGuards { return &v1beta1.ScaleDownGuards{MaxInFlight: &n} }
	assert.EqualValues(t, math.MaxInt32, AtOnce(nil, 10))
	assert.EqualValues(t, math.MaxInt32, AtOnce(&v1beta1.ScaleDownGuards{MinReadySeconds: ptr.To[int32](1)}, 10))
	assert.EqualValues(t, 3, AtOnce(guards(intstr.FromInt32(3)), 10))
	assert.EqualValues(t, 2, AtOnce(guards(intstr.FromString("29%")), 10))
	assert.EqualValues(t, 1, AtOnce(guards(intstr.FromString("1%")), 10))
}
