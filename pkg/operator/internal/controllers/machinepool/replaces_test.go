// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// After a restore of etcd the shard groups have size 2, and the shards size 6.
func TestChangedReplicasReplaceWhatTheShardsHave(t *testing.T) {
	for name, test := range map[string]struct {
		replicas int32
		// onB is the size of the shard group on shard b, 2 if it is 0.
		onB    int32
		change func(*shard.Revision)
		want   map[string]string
	}{
		"the replicas of the backup replace nothing": {replicas: 4, want: map[string]string{"a": "", "b": ""}},
		"as many as the shards have":                 {replicas: 12, want: map[string]string{"a": "uid-a/9", "b": "uid-b/9"}},
		"the size of one shard group is unchanged":   {replicas: 12, onB: 6, want: map[string]string{"a": "uid-a/9", "b": "uid-b/9"}},
		"more than the shards have":                  {replicas: 20, want: map[string]string{"a": "uid-a/9", "b": "uid-b/9"}},
		"one shard would terminate an instance":      {replicas: 11, want: map[string]string{"a": "uid-a/9", "b": ""}},
		"fewer than in the backup":                   {replicas: 2, want: map[string]string{"a": "", "b": ""}},
		"the shard group is the newer one": {replicas: 12, want: map[string]string{"a": "", "b": ""},
			change: func(r *shard.Revision) { r.Generation = 1 }},
		"the shard has the group of another object": {replicas: 12, want: map[string]string{"a": "", "b": ""},
			change: func(r *shard.Revision) { r.UID = "uid-other" }},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool("a", "b")
			groups := map[string]*shard.Group{}
			restored := map[string]*v1beta1.NstanceShardGroup{}
			for _, id := range []string{"a", "b"} {
				revision := &shard.Revision{UID: "uid-" + id, Generation: 9}
				if test.change != nil {
					test.change(revision)
				}
				groups[id] = &shard.Group{Key: "workers", Size: 6, Revision: revision}
				size := int32(2)
				if id == "b" {
					size = max(size, test.onB)
				}
				restored[id] = ready(newShardGroup(pool, id, size))
				restored[id].UID, restored[id].Generation = types.UID("uid-"+id), 1
			}
			h := newHarness(t, withGroups(groups), pool, restored["a"], restored["b"])
			h.scale(test.replicas)
			_, _, err := h.sync()
			assert.NoError(t, err)
			for id, want := range test.want {
				assert.Equal(t, want, h.shardGroup(id).Annotations[v1beta1.AnnotationReplaces], id)
			}
			// The annotation stays until the shard has the shard group.
			h.Show()
			h.expect()
		})
	}
}
