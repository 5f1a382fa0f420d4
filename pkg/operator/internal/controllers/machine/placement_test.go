// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/testing/tier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestChoose(t *testing.T) {
	good := func(id string, placed int) candidate {
		return candidate{id: id, synced: true, reachable: true, hasGroup: true, nstanceMachines: placed}
	}
	but := func(c candidate, change func(*candidate)) candidate {
		change(&c)
		return c
	}
	notSynced := but(good("not-synced", 0), func(c *candidate) { c.synced, c.hasGroup = false, false })
	disconnected := but(good("disconnected", 0), func(c *candidate) { c.reachable = false })
	without := but(good("without", 0), func(c *candidate) { c.hasGroup = false })
	tests := map[string]struct {
		requested  string
		candidates []candidate
		want       string
		reason     string
		message    string
	}{
		"the one with the fewest NstanceMachines": {candidates: []candidate{good("a", 3), good("b", 1), good("c", 2)}, want: "b"},
		"of several the first by id":              {candidates: []candidate{good("c", 1), good("b", 1), good("a", 2)}, want: "b"},
		"none that is disconnected":               {candidates: []candidate{disconnected, good("b", 9)}, want: "b"},
		"none without the group":                  {candidates: []candidate{without, good("b", 9)}, want: "b"},
		"none whose groups are not known":         {candidates: []candidate{notSynced, good("b", 9)}, want: "b"},
		"the requested one, in any state":         {requested: "b", candidates: []candidate{good("a", 0), {id: "b"}}, want: "b"},
		"a requested one that is not configured": {requested: "z", candidates: []candidate{good("a", 0)},
			reason: v1beta1.ReasonUnknownShard, message: `shard "z" is not configured`},
		"not all groups are known": {candidates: []candidate{notSynced, disconnected, without},
			reason: v1beta1.ReasonNotSynced, message: "no shard whose groups are known can be used; not known yet: not-synced"},
		"all that have it are disconnected": {candidates: []candidate{disconnected, without},
			reason: v1beta1.ReasonNoShard, message: "no shard that has the group is connected; not connected: disconnected"},
		"none has it": {candidates: []candidate{without}, reason: v1beta1.ReasonNoShard, message: "no shard has the group"},
		"no shards":   {reason: v1beta1.ReasonNoShard, message: "no shard has the group"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, blocked := choose(test.requested, test.candidates)
			if got != test.want || (blocked != nil) != (test.reason != "") {
				t.Fatalf("got %q, %+v, want %q", got, blocked, test.want)
			}
			if blocked != nil && *blocked != (problem{test.reason, test.message}) {
				t.Errorf("got %+v", *blocked)
			}
		})
	}
}

// All workers place NstanceMachines at the same time, and the cache does not show
// any placement yet.
func TestManyNstanceMachinesAreSpreadEvenly(t *testing.T) {
	each, before := tier.Pick(67, 167), 20
	var all []*v1beta1.NstanceMachine
	for i := range 3*each - before {
		all = append(all, newNstanceMachine(fmt.Sprintf("m-%d", i)))
	}
	// Shard a already has some NstanceMachines. NstanceMachines of another group do not count.
	for i := range before {
		all = append(all, running(newNstanceMachine(fmt.Sprintf("old-%d", i)), fmt.Sprintf("i-%d", i)))
		other := running(newNstanceMachine(fmt.Sprintf("other-%d", i)), fmt.Sprintf("o-%d", i))
		other.Spec.GroupRef.Name, other.Status.Shard = "others", "c"
		all = append(all, other)
	}
	h := newHarness(t, newShards("a", "b", "c"), all...)
	h.Ctx = klog.NewContext(t.Context(), klog.Logger{})
	syncAll := func() {
		names := make(chan string)
		var running sync.WaitGroup
		for range workers {
			running.Go(func() {
				for name := range names {
					if _, err := h.controller.sync(h.Ctx, cache.NewObjectName(controllertest.Namespace, name)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for _, nstanceMachine := range all {
			names <- nstanceMachine.Name
		}
		close(names)
		running.Wait()
	}
	count := func() (placed map[string]int, requested int) {
		placed = map[string]int{}
		for _, nstanceMachine := range all {
			if got := h.nstanceMachine(nstanceMachine.Name); got.Spec.GroupRef.Name == "workers" {
				placed[got.Status.Shard]++
				if got.Status.InstanceID != "" {
					requested++
				}
			}
		}
		return placed, requested
	}

	syncAll()
	placed, _ := count()
	for _, id := range h.Fake.Shards() {
		if placed[id] != each {
			t.Errorf("shard %s has %d NstanceMachines, want %d", id, placed[id], each)
		}
	}
	// While the cache is stale, no further write is made.
	h.Writes()
	syncAll()
	if did := h.Writes(); did != nil || h.requests() != 0 {
		t.Errorf("did %d writes and %d create requests", len(did), h.requests())
	}
	h.Show()
	syncAll()
	if _, requested := count(); requested != 3*each || h.requests() != 3*each-before {
		t.Errorf("there are %d instances, %d were requested", requested, h.requests())
	}
	if got, _ := count(); got["a"] != each || got["b"] != each {
		t.Errorf("the placement has changed: %v", got)
	}
	// A placement that the cache shows is not counted twice.
	assert.Empty(t, h.controller.placements.chosen)
	want := map[string]int{placementKey("others", "c"): before}
	for _, id := range h.Fake.Shards() {
		want[placementKey("workers", id)] = each
	}
	assert.Equal(t, want, h.controller.placements.counts)
	for _, nstanceMachine := range all {
		controllertest.Remove[*v1beta1.NstanceMachine](h.API, nstanceMachine.Name)
	}
	h.Show()
	assert.Empty(t, h.controller.placements.counts, "counts of deleted NstanceMachines")
}

// What the handler has seen before a placement is recorded does not drop it later.
func TestAPlacementThatTheHandlerHasSeenIsNotKept(t *testing.T) {
	for name, seen := range map[string]func(h *harness){
		"the NstanceMachine was deleted": func(h *harness) { controllertest.Remove[*v1beta1.NstanceMachine](h.API, "m") },
		"another shard was written": func(h *harness) {
			controllertest.Change(h.API, "m", func(m *v1beta1.NstanceMachine) { m.Status.Shard, m.Status.RequestID = "b", "request" })
		},
		"the same shard is chosen again": func(h *harness) {
			controllertest.Change(h.API, "m", func(m *v1beta1.NstanceMachine) { m.Status.Shard, m.Status.RequestID = "a", "request" })
			h.Fake.Update(func() { delete(h.Fake.ByID, "b") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a", "b"), newNstanceMachine("m"))
			observed := observation{nstanceMachine: h.nstanceMachine("m"), machine: newMachine("m")}
			seen(h)
			h.Show()
			if cached, err := h.controller.nstanceMachineLister.Get("m"); err == nil && cached.Status.Shard == "a" {
				observed.nstanceMachine = cached
			}
			want := maps.Clone(h.controller.placements.counts)
			chosen, blocked := h.controller.place(observed, nil)
			assert.Equal(t, "a", chosen)
			assert.Nil(t, blocked)
			assert.Equal(t, want, h.controller.placements.counts)
		})
	}
}

// countingLister counts the NstanceMachines that are read.
type countingLister struct {
	nstancelisters.NstanceMachineNamespaceLister
	got int
}

func (l *countingLister) Get(name string) (*v1beta1.NstanceMachine, error) {
	l.got++
	return l.NstanceMachineNamespaceLister.Get(name)
}

// A thousand NstanceMachines of a group are placed before the cache shows the first of them.
func TestAPlacementVisitsNoOtherNstanceMachine(t *testing.T) {
	const count = 1000
	all := make([]*v1beta1.NstanceMachine, count)
	for n := range all {
		all[n] = newNstanceMachine(fmt.Sprint("m-", n))
	}
	h := newHarness(t, newShards("a", "b", "c"), all...)
	for n := range 500 {
		h.Fake.ByID[fmt.Sprint("other-", n)] = shardtest.NewShard()
	}
	lister := &countingLister{NstanceMachineNamespaceLister: h.controller.nstanceMachineLister}
	h.controller.nstanceMachineLister = lister
	for _, nstanceMachine := range all {
		_, blocked := h.controller.place(observation{nstanceMachine: h.nstanceMachine(nstanceMachine.Name), machine: newMachine(nstanceMachine.Name)}, nil)
		require.Nil(t, blocked)
	}
	assert.LessOrEqual(t, lister.got, count, "NstanceMachines that were read")
	assert.Len(t, h.controller.placements.chosen, count)
}

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

func TestARequestThatAShardDeclinesIsSentToTheNext(t *testing.T) {
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

	// The group on the first shard changes, so that the request may succeed there.
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

// The shard of an NstanceMachine may have changed since a new leader's cache, and the former
// shard may accept the request by now.
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

// With another request id the shard would create another instance.
func TestARequestIsNotSentWithAFormerID(t *testing.T) {
	h := newHarness(t, newShards("a"), withShard(newNstanceMachine("m")))
	h.Show()
	h.change(func(m *v1beta1.NstanceMachine) {
		withShard(m)
		m.Status.RequestID, m.ResourceVersion = "another", "99"
	})
	h.restart()
	_, _, err := h.SyncStale()
	require.ErrorContains(t, err, "the cache does not show")
	assert.Zero(t, h.requests())
}

// The next shard may be stored although the reply to the write was lost, and the former shard
// may accept the request by now.
func TestARequestIsNotSentToAFormerShardAfterALostReply(t *testing.T) {
	h := newHarness(t, newShards("a", "b"), newNstanceMachine("m"))
	declines := h.decline("a")
	h.Expect(applyM, applyStatusM)
	h.Expect(applyStatusM)
	h.expectReady("False InstanceRefused: group does not exist")

	writes := 0
	h.failWrites(func() fault {
		if writes++; writes == 2 {
			return failed
		}
		return none
	})
	h.Show()
	_, _, err := h.SyncStale()
	require.Error(t, err)
	// The cache has the annotations, and the status is written after it was read.
	h.Show()
	h.change(func(m *v1beta1.NstanceMachine) { m.Status.Shard, m.ResourceVersion = "b", "99" })
	delete(declines, "a")
	_, _, err = h.SyncStale()
	require.ErrorContains(t, err, "the cache does not show")
	assert.Zero(t, h.requests())
	h.Expect("create large of workers on b", applyStatusM)
}

// Like TestOneInstanceDespiteAnyFault, with a shard that declines the request at first.
func TestOneInstanceDespiteAnyFaultWhenAShardDeclines(t *testing.T) { testEachFault(t, "b", declined) }

// noCapacity returns the error of a server without capacity.
func noCapacity() error {
	declined, err := status.New(codes.ResourceExhausted, "out of capacity: quota").WithDetails(
		&errdetails.ErrorInfo{Domain: nstancev1.ErrorDomain, Reason: nstancev1.ReasonOutOfCapacity})
	if err != nil {
		panic(err)
	}
	return declined.Err()
}

func TestARequestIsSentToAShardWithCapacity(t *testing.T) {
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

// All shards are requested again, with growing delays, until a shard has capacity.
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

// A machine whose request was declined has no instance, and is deleted at once.
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

// Like TestOneInstanceDespiteAnyFault, with a shard that has no capacity at first.
func TestOneInstanceDespiteAnyFaultWhenAShardHasNoCapacity(t *testing.T) {
	testEachFault(t, "b", noCapacity())
}
