// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// decliningClient declines create requests on some shards, unless the instance of the
// request exists.
type decliningClient struct {
	shard.Client

	h        *harness
	declines map[string]error
}

func (d decliningClient) CreateInstance(ctx context.Context, id, requestID string, spec shard.InstanceSpec) (shard.Instance, error) {
	if err := d.declines[id]; err != nil && d.h.Fake.ByID[id].Requests[requestID] == "" {
		return shard.Instance{}, err
	}
	return d.Client.CreateInstance(ctx, id, requestID, spec)
}

func (h *harness) decline(shards ...string) map[string]error {
	declines := map[string]error{}
	for _, id := range shards {
		declines[id] = declined
	}
	h.ShardClient = decliningClient{h.ShardClient, h, declines}
	h.restart()
	return declines
}

func (h *harness) expectShard(want string) {
	h.T.Helper()
	assert.Equal(h.T, want, h.nstanceMachine("m").Status.Shard, "the shard")
}

func TestARequestThatAShardDeclinesGoesToTheNext(t *testing.T) {
	h := newHarness(t, newShards("a", "b", "c"), newNstanceMachine("m"))
	h.decline("a", "b")
	h.Expect(applyM, applyStatusM)
	h.expectShard("a")
	h.Expect(applyStatusM)
	h.expectReady("False InstanceRefused: group does not exist")
	h.Expect(applyM, applyStatusM)
	h.expectShard("b")
	h.Expect(applyStatusM)
	h.Expect(applyM, applyStatusM)
	h.expectShard("c")
	h.Expect("create large of workers on c", applyStatusM)
	assert.Equal(t, "c/uid-of-m", h.nstanceMachine("m").Annotations[v1beta1.AnnotationRequest])
	assert.Equal(t, 1, h.requests())
}

func TestARequestThatAllShardsDeclineIsRepeatedLater(t *testing.T) {
	h := newHarness(t, newShards("a", "b"), newNstanceMachine("m"))
	declines := h.decline("a", "b")
	h.Expect(applyM, applyStatusM)
	h.Expect(applyStatusM)
	h.Expect(applyM, applyStatusM)
	h.Advance(time.Minute)
	h.Expect(applyStatusM)
	h.expectShard("b")
	requeue := h.Expect()
	assert.Equal(t, rejectionRetry, requeue)

	// The group of the first changes, and the request may succeed there.
	delete(declines, "a")
	h.changeGroup(func(g *shard.Group) { g.ETag = "2" })
	h.Expect(applyM, applyStatusM)
	h.expectShard("a")
	h.Expect(createOnA, applyStatusM)
}

func TestARequestStaysOnItsShard(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1beta1.NstanceMachine)
		err    error
		domain string
	}{
		"that the user has chosen":                     {change: func(m *v1beta1.NstanceMachine) { m.Spec.Shard = "a" }, err: declined},
		"that the Machine has chosen":                  {domain: "a", err: declined},
		"that may have carried it out":                 {err: status.Error(codes.Internal, "stream terminated by RST_STREAM")},
		"that did not reply":                           {err: status.Error(codes.DeadlineExceeded, "no reply")},
		"that limits something, perhaps the transport": {err: status.Error(codes.ResourceExhausted, "message too large")},
	} {
		t.Run(name, func(t *testing.T) {
			nstanceMachine := withShard(newNstanceMachine("m"))
			if test.change != nil {
				test.change(nstanceMachine)
			}
			h := newHarness(t, newShards("a", "b"), nstanceMachine)
			machine := newMachine("m")
			machine.Spec.FailureDomain = test.domain
			h.Put(h.Informers.Machines, machine)
			h.decline()["a"] = test.err
			for range 5 {
				h.Show()
				_, _, _ = h.SyncStale()
				h.Advance(time.Second)
			}
			h.expectShard("a")
		})
	}
}

// The shard of an NstanceMachine may have changed since the cache of a new leader, and the
// former shard may accept the request by now.
func TestARequestIsNotSentToAFormerShard(t *testing.T) {
	h := newHarness(t, newShards("a", "b"), withShard(newNstanceMachine("m")))
	h.Show()
	h.change(func(m *v1beta1.NstanceMachine) {
		withShard(m)
		m.Status.Shard, m.ResourceVersion = "b", "99"
	})
	h.restart()
	_, _, err := h.SyncStale()
	require.Error(t, err)
	assert.Zero(t, h.requests())
	h.Expect("create large of workers on b", applyM, applyStatusM)
}

// As TestOneInstanceDespiteAnyFault, with a shard that declines the request at first.
func TestOneInstanceDespiteAnyFaultWhenAShardDeclines(t *testing.T) { testEachFault(t, "b", declined) }
