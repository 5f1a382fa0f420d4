// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// FuzzGroups reads arbitrary replies of a shard server with groups, and then each group as an event.
// The cache never has more than the limits, and knows how much it has.
func FuzzGroups(f *testing.F) {
	add := func(groups ...*nstancev1.GroupStatus) {
		seed, err := proto.Marshal(&nstancev1.ListGroupsResponse{Groups: groups})
		require.NoError(f, err)
		f.Add(seed)
	}
	add()
	seed, err := proto.Marshal(&nstancev1.ListGroupsResponse{
		Version: "term.7", Changes: true, Removed: []string{"workers", "never-known", "../"},
		Groups: []*nstancev1.GroupStatus{{Key: "workers", Size: 1}},
	})
	require.NoError(f, err)
	f.Add(seed)
	add(&nstancev1.GroupStatus{Key: "workers", Tenant: "default", Template: "worker", Size: 2, Vars: map[string]string{"role": "worker"}},
		&nstancev1.GroupStatus{Key: "../workers", Tenant: "default"})
	add(&nstancev1.GroupStatus{
		Key: "workers", Size: -1, ProviderIds: []string{"aws:///a/i-1"}, RemoveFirst: []string{"knd1"},
		Instances: &nstancev1.ManagedInstances{Instances: []*nstancev1.ManagedInstance{{Id: "knd2", Status: "running"}, {Id: "knd1", Status: "?"}}},
		Declared:  &nstancev1.GroupSettings{}, Revision: &nstancev1.Revision{Uid: "u", Generation: -1},
		Node:          &nstancev1.NodeShape{Capacity: map[string]string{"cpu": "many"}, Taints: []*nstancev1.NodeTaint{{Key: "a"}}},
		DeletionOrder: slices.Repeat([]*nstancev1.NextDeletion{{InstanceId: "knd1", Reason: "expired"}}, 2*shard.MaxDeletionOrder),
		Shortfall:     &nstancev1.Shortfall{Missing: 1 << 30, Message: strings.Repeat("\x1b[2Jno capacity ä", 400)},
	}, &nstancev1.GroupStatus{Key: "workers"})
	f.Fuzz(func(t *testing.T, data []byte) {
		reply := &nstancev1.ListGroupsResponse{}
		if proto.Unmarshal(data, reply) != nil {
			return
		}
		cache := newGroupCache("a", holders{})
		cache.startList(1)
		if groups, invalid, err := convert(reply); err == nil {
			assert.Len(t, reply.GetGroups(), len(groups)+len(invalid))
			cache.finishList(groups)
		}
		check(t, cache)
		cache.startList(2)
		if groups, _, err := convert(reply); err == nil {
			_, _ = cache.finishChanges(groups, reply.GetRemoved())
			check(t, cache)
		}
		for _, message := range reply.GetGroups() {
			if identifier.Validate(message.GetKey()) == nil {
				_, _ = cache.put(wire.Group(message))
				check(t, cache)
				cache.remove(message.GetKey())
			}
		}
	})
}

func check(t *testing.T, cache *groupCache) {
	t.Helper()
	var total shard.Size
	for key, group := range cache.groups {
		size, err := shard.Measure(group)
		require.NoError(t, err, key)
		assert.Equal(t, size, cache.sizes[key])
		assert.Equal(t, key, group.Key)
		assert.LessOrEqual(t, len(group.DeletionOrder), shard.MaxDeletionOrder)
		assert.LessOrEqual(t, len(group.Shortfall.Message), shard.MaxText)
		assert.True(t, utf8.ValidString(group.Shortfall.Message))
		total = total.Add(size)
	}
	assert.Equal(t, total, cache.size)
	assert.NoError(t, total.Check())
}
