// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func unmarshal(t testing.TB, message proto.Message) error {
	t.Helper()
	data, err := proto.Marshal(message)
	require.NoError(t, err)
	codec := newLimitedCodec()
	return codec.explain(codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, message.ProtoReflect().New().Interface()))
}

// A group without any field has two bytes on the wire.
func TestAMessageThatTakesTooMuchMemoryIsNotDecoded(t *testing.T) {
	reply := &nstancev1.ListGroupsResponse{}
	for range 500_000 {
		reply.Groups = append(reply.Groups, &nstancev1.GroupStatus{})
	}
	data, err := proto.Marshal(reply)
	require.NoError(t, err)
	require.Less(t, len(data), maxReceivedBytes)
	reply = nil
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	received, codec := &nstancev1.ListGroupsResponse{}, newLimitedCodec()
	err = codec.explain(codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, received))
	after := heap()
	assert.Equal(t, shard.LimitMessage, shard.Exceeded(err), "%v", err)
	assert.True(t, shard.IsUnreachable(err))
	assert.Less(t, after, before+uint64(4*len(data)), "the message was decoded")
	assert.Empty(t, received.Groups)
	runtime.KeepAlive(data)
	runtime.KeepAlive(received)
}

// The largest shard that is allowed is decoded.
func TestAMessageWithinTheLimitsIsDecoded(t *testing.T) {
	reply := &nstancev1.ListGroupsResponse{}
	vars := map[string]string{}
	for n := range 20 {
		vars[fmt.Sprint("var-", n)] = strings.Repeat("x", 100)
	}
	for range shard.MaxGroups {
		group := &nstancev1.GroupStatus{
			Key: "workers", Template: "worker", Vars: vars, Declared: &nstancev1.GroupSettings{Vars: vars}, Instances: &nstancev1.ManagedInstances{},
			Node: &nstancev1.NodeShape{Architecture: "arm64", Capacity: map[string]string{"cpu": "2", "memory": "8Gi"}},
		}
		for n := range shard.MaxInstances / shard.MaxGroups {
			group.ProviderIds = append(group.ProviderIds, fmt.Sprintf("aws:///us-west-2a/i-%017d", n))
			group.Instances.Instances = append(group.Instances.Instances, &nstancev1.ManagedInstance{
				Id: fmt.Sprintf("knd%026d", n), Status: "running", ProviderId: fmt.Sprintf("aws:///us-west-2a/i-%017d", n),
			})
		}
		reply.Groups = append(reply.Groups, group)
	}
	assert.NoError(t, unmarshal(t, reply))
}

func FuzzDecodedSize(f *testing.F) {
	for _, message := range []proto.Message{
		&nstancev1.ListGroupsResponse{Groups: []*nstancev1.GroupStatus{{Key: "a", Vars: map[string]string{"a": "b"}}, {}}},
		&nstancev1.ListGroupsResponse{},
	} {
		data, err := proto.Marshal(message)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		received := &nstancev1.ListGroupsResponse{}
		size := decodedSize(data, received.ProtoReflect().Descriptor(), maxDecoded)
		if proto.Unmarshal(data, received) == nil && size < len(received.Groups)*messageCost {
			t.Errorf("%d groups have the size %d", len(received.Groups), size)
		}
	})
}
