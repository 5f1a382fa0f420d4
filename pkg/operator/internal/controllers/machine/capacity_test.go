// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// noCapacity is the error with which a server declines a create request.
func noCapacity() error {
	declined, err := status.New(codes.ResourceExhausted, "out of capacity: quota").WithDetails(
		&errdetails.ErrorInfo{Domain: nstancev1.ErrorDomain, Reason: nstancev1.ReasonOutOfCapacity})
	if err != nil {
		panic(err)
	}
	return declined.Err()
}

func TestARequestGoesToAShardWithCapacity(t *testing.T) {
	h := newHarness(t, newShards("a", "b", "c"), newNstanceMachine("m"))
	declines := h.decline()
	declines["a"], declines["b"] = noCapacity(), noCapacity()
	h.Expect(applyM, applyStatusM)
	h.expectShard("a")
	h.Expect(applyStatusM)
	h.expectReady("False OutOfCapacity: out of capacity: quota")
	assert.Equal(t, []string{"Warning OutOfCapacity out of capacity: quota"}, h.Events())
	h.Expect(applyM, applyStatusM)
	h.expectShard("b")
	h.Expect(applyStatusM)
	h.Expect(applyM, applyStatusM)
	h.expectShard("c")
	h.Expect("create large of workers on c", applyStatusM)
	assert.Equal(t, "c/uid-of-m", h.nstanceMachine("m").Annotations[v1beta1.AnnotationRequest])
	assert.Equal(t, 1, h.requests())
}

// All shards are requested again and again, with growing delays, until one has capacity.
func TestARequestWithoutCapacityIsRepeatedLater(t *testing.T) {
	h := newHarness(t, newShards("a", "b"), newNstanceMachine("m"))
	declines := h.decline()
	declines["a"], declines["b"] = noCapacity(), noCapacity()
	var delays []time.Duration
	for range 60 {
		h.Show()
		_, requeue, err := h.SyncStale()
		assert.NoError(t, err)
		if requeue > time.Second && (len(delays) == 0 || delays[len(delays)-1] != requeue) {
			delays = append(delays, requeue)
		}
		h.Advance(requeue)
	}
	assert.Equal(t, []time.Duration{15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute}, delays)
	h.expectReady("False OutOfCapacity: out of capacity: quota")
	assert.Zero(t, h.requests())

	clear(declines)
	for range 5 {
		h.Show()
		_, requeue, err := h.SyncStale()
		assert.NoError(t, err)
		h.Advance(requeue)
	}
	assert.Equal(t, 1, h.requests())
}

// The shard that a user has chosen is requested again.
func TestAChosenShardWithoutCapacityIsRequestedAgain(t *testing.T) {
	nstanceMachine := withShard(newNstanceMachine("m"))
	nstanceMachine.Spec.Shard = "a"
	h := newHarness(t, newShards("a", "b"), nstanceMachine)
	declines := h.decline()
	declines["a"] = noCapacity()
	h.Expect(applyStatusM)
	assert.Equal(t, minCapacityRetry, h.Expect())
	h.expectReady("False OutOfCapacity: out of capacity: quota")
	clear(declines)
	h.Advance(minCapacityRetry)
	h.Expect(createOnA, applyStatusM)
}

// A machine whose request was declined has no instance, and is deleted without one.
func TestAMachineWithoutCapacityIsDeleted(t *testing.T) {
	h := newHarness(t, newShards("a"), withShard(newNstanceMachine("m")))
	h.decline()["a"] = noCapacity()
	h.Expect(applyStatusM)
	h.change(func(m *v1beta1.NstanceMachine) { deleting(m) })
	h.Show()
	_, _, err := h.SyncStale()
	assert.NoError(t, err)
	assert.Zero(t, h.requests())
	assert.Nil(t, h.nstanceMachine("m"))
}

// As TestOneInstanceDespiteAnyFault, with a shard that has no capacity at first.
func TestOneInstanceDespiteAnyFaultWhenAShardHasNoCapacity(t *testing.T) {
	testEachFault(t, "b", noCapacity())
}
