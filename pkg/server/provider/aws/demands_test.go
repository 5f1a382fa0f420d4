// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/testing/tier"
)

// wanted requests an instance again and again, as the reconciler does, with a new id when
// the last one has failed.
type wanted struct {
	*providertest.Harness
	*world
	spec provider.Spec
	id   string
}

// reconcile makes the request that is due.
func (r *wanted) reconcile() {
	vm, known := r.Get(r.id)
	switch {
	case known && vm.State.Down():
		r.MustDelete(r.id)
	case known:
		return
	}
	if r.id == "" || known {
		r.id = providertest.NewID(r.t)
	}
	r.spec.ID = r.id
	_ = r.Create(r.t.Context(), r.spec) // is tried again
}

// during reconciles every five seconds for a time.
func (r *wanted) during(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Second) {
		r.reconcile()
	}
}

// TestDemandOneVMForOneRequest is TestTheServerIsKilled, and here: a response is lost, and
// the request repeated by the same process.
func TestDemandOneVMForOneRequest(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		h := w.startProvider()
		w.SetFaults(&ec2test.Fault{Call: "RunInstances", Times: 3})
		id := h.MustRun(spec())
		w.expectMade(id)
		assert.Equal(t, id, w.Made()[0].Token)
	})
}

// TestDemandTheRulesOfTokens.
func TestDemandTheRulesOfTokens(t *testing.T) {
	for _, hidden := range []time.Duration{time.Minute, 4 * time.Minute} {
		t.Run("a new nonce finds the instance of the old one after "+hidden.String(), func(t *testing.T) {
			inBubble(t, newRegion(), func(t *testing.T, w *world) {
				h := w.startProvider()
				w.SetFaults(&ec2test.Fault{Call: "RunInstances"})
				s := spec()
				s.ID = providertest.NewID(t)
				h.MustCreate(s)
				time.Sleep(time.Second)
				h.Stop()
				w.SetFaults()
				// The process does not know that there was another one.
				w.DelayVisibility(hidden)
				h = w.startProvider()
				s.Userdata = []byte("another nonce")
				h.MustRun(s)
				w.expectMade(s.ID)
				assert.Empty(t, h.Failures)
			})
		})
	}
	t.Run("a token whose instance was terminated needs a new id", func(t *testing.T) {
		inBubble(t, newRegion(), func(t *testing.T, w *world) {
			h := w.startProvider()
			w.SetFaults(&ec2test.Fault{Call: "RunInstances"}, &ec2test.Fault{Call: "DescribeInstances", Before: true})
			r := &wanted{Harness: h, world: w, spec: spec()}
			r.during(10 * time.Second)
			first := r.id
			w.Terminate(first)
			w.SetFaults()
			h.Await(workers, map[string]instance.State{first: instance.Stopped})
			vm, _ := h.Get(first)
			assert.Equal(t, "the service has terminated the instance: Client.UserInitiatedShutdown: User initiated shutdown", vm.Reason)
			r.during(10 * time.Minute)
			assert.NotEqual(t, first, r.id)
			assert.Equal(t, map[string]instance.State{r.id: instance.Running}, h.States(workers))
			w.expectMade(first, r.id)
		})
	})
	t.Run("another subnet only after a rejection, with another token", func(t *testing.T) {
		inBubble(t, newRegion(), func(t *testing.T, w *world) {
			h := w.startProvider()
			s := spec()
			s.ID, s.Subnet = providertest.NewID(t), rejectedSubnet
			h.MustCreate(s)
			h.Await(workers, map[string]instance.State{s.ID: providertest.Deleted})
			s.Subnet = largeSubnet
			h.MustRun(s)
			w.expectMade(s.ID)
			assert.Equal(t, s.ID+".1", w.Made()[0].Token)
		})
	})
}

// TestDemandReadsAreLate: an instance that is not shown for 30 s and has no address for
// further 10 s is neither created again, nor missing, nor terminated.
func TestDemandReadsAreLate(t *testing.T) {
	s := newRegion()
	s.AddressDelay = 40 * time.Second
	inBubble(t, s, func(t *testing.T, w *world) {
		w.DelayVisibility(30 * time.Second)
		h := w.startProvider()
		id := h.MustCreate(spec())
		for range 25 {
			time.Sleep(time.Second)
			assert.Equal(t, map[string]instance.State{id: instance.Pending}, h.States(workers))
		}
		h.Await(workers, map[string]instance.State{id: instance.Running})
		time.Sleep(5 * time.Minute)
		vm, _ := h.Get(id)
		assert.Len(t, vm.Addresses, 1)
		w.expectMade(id)
		assert.Empty(t, w.Terminated())
		assert.Empty(t, h.Failures)
	})
}

// TestDemandAnOutageEndsNothing: empty lists, not-found responses and errors replace nothing,
// but a terminated instance is replaced. TestAnOutage tests more kinds of outages.
func TestDemandAnOutageEndsNothing(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		r := &wanted{Harness: w.startProvider(), world: w, spec: spec()}
		r.during(time.Minute)
		first := r.id
		w.Calls()
		for name, fault := range map[string]*ec2test.Fault{
			"three empty lists": {Before: true, Times: 3, Status: 200},
			"HTTP 500":          {Before: true, Status: 500, Code: "InternalError"},
			"not found":         nil, // in lists, and by its id
		} {
			if fault == nil {
				w.DelayVisibility(24 * time.Hour)
			} else {
				w.SetFaults(fault)
			}
			r.during(10 * time.Minute)
			w.SetFaults()
			w.DelayVisibility(0)
			r.during(5 * time.Minute)
			assert.Equal(t, map[string]instance.State{first: instance.Running}, r.States(workers), name)
			// A repeated launch would give the same instance.
			assert.Zero(t, w.Calls()["RunInstances"], name)
			w.expectMade(first)
			assert.Empty(t, w.Terminated(), name)
		}
		w.Terminate(first)
		r.during(10 * time.Minute)
		assert.Equal(t, map[string]instance.State{r.id: instance.Running}, r.States(workers))
		w.expectMade(first, r.id)
	})
}

// TestDemandLackOfCapacityIsRemembered for type, zone and market.
func TestDemandLackOfCapacityIsRemembered(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		h := w.startProvider()
		w.SetFull(testType.Name, ec2test.Zone, "spot", true)
		spot := &wanted{Harness: h, world: w, spec: spec()}
		spot.spec.Args = map[string]any{"market": "spot"}
		spot.reconcile()
		h.Await(workers, map[string]instance.State{spot.id: providertest.Deleted})
		errs := h.ExpectFailures(1, workers, spot.id)
		require.ErrorContains(t, errs[0], "out of capacity: InsufficientInstanceCapacity for m7i.large spot")
		require.ErrorContains(t, h.Provider.(provider.CapacityChecker).CheckCapacity(spot.spec), "out of capacity")
		spot.during(170 * time.Second)
		assert.Equal(t, 1, w.Calls()["RunInstances"], "launches within three minutes")
		spot.during(20 * time.Second)
		assert.Equal(t, 1, w.Calls()["RunInstances"], "launches afterwards")
		// Other types, and the same one of the other market, are launched.
		other := spot.spec
		other.ID, other.Type = "", otherType
		h.MustRun(other)
		require.NoError(t, h.Provider.(provider.CapacityChecker).CheckCapacity(spec()))
		h.MustRun(spec())
		w.SetFull(testType.Name, ec2test.Zone, "spot", false)
		spot.during(5 * time.Minute)
		assert.Equal(t, instance.Running, h.States(workers)[spot.id])
	})
}

// TestDemandAddressesAreCounted, including the addresses of launches in progress.
func TestDemandAddressesAreCounted(t *testing.T) {
	s := newRegion()
	s.AddSubnet("subnet-0000000b", ec2test.Zone, 11)
	inBubble(t, s, func(t *testing.T, w *world) {
		h := w.startProvider()
		first := spec()
		first.Subnet = "subnet-0000000b"
		want := map[string]instance.State{}
		for range 20 {
			first.ID = providertest.NewID(t)
			if err := h.Create(t.Context(), first); err != nil {
				require.ErrorContains(t, err, "no room in subnet subnet-0000000b")
				other := first
				other.Subnet = largeSubnet
				h.MustCreate(other)
			}
			want[first.ID] = instance.Running
		}
		h.Await(workers, want)
		there := 0
		for id := range want {
			if w.Instance(id).Subnet == "subnet-0000000b" {
				there++
			}
		}
		assert.Equal(t, 11, there)
		assert.Equal(t, 20, w.Calls()["RunInstances"], "launches")
		assert.Empty(t, h.Failures)
	})
}

// TestDemandAQuotaMakesNoStorm: in ten minutes, there is one launch for each time that the
// rejection is remembered.
func TestDemandAQuotaMakesNoStorm(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		h := w.startProvider()
		w.SetQuota("on-demand", 0)
		r := &wanted{Harness: h, world: w, spec: spec()}
		r.during(10 * time.Minute)
		launches := w.Calls()["RunInstances"]
		if launches < 2 || launches > 4 {
			t.Errorf("%d launches in ten minutes, want at most 4", launches)
		}
		require.Len(t, h.Failures, launches)
		require.ErrorContains(t, (<-h.Failures).Err, "out of capacity: VcpuLimitExceeded for m7i.large")
		w.SetQuota("on-demand", -1)
		r.during(5 * time.Minute)
		assert.Equal(t, map[string]instance.State{r.id: instance.Running}, h.States(workers))
	})
}

// TestDemandFewCalls of a shard with 500 instances at full size, and one minute in which all
// calls are throttled.
func TestDemandFewCalls(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		var ids []string
		instances := tier.Pick(150, 500)
		for range instances {
			r := request(t)
			w.launch(r)
			ids = append(ids, r.ID)
		}
		time.Sleep(5 * time.Minute)
		h := w.startProvider()
		w.Calls()
		time.Sleep(10 * time.Minute)
		idle := w.Calls()
		assert.LessOrEqual(t, idle["DescribeInstances"], 11, "lists in ten minutes")
		assert.LessOrEqual(t, idle["DescribeInstanceStatus"], 22, "lists of status checks in ten minutes")
		assert.Len(t, idle, 2)

		for _, id := range ids[:120] {
			h.MustDelete(id)
		}
		want := map[string]instance.State{}
		for _, id := range ids[:120] {
			want[id] = providertest.Deleted
		}
		h.Await(workers, want)
		busy := w.Calls()
		assert.Equal(t, 3, busy["TerminateInstances"])
		assert.LessOrEqual(t, busy["DescribeInstances"], 13, "lists in a minute in which something happens")

		_, err := h.Capacity(t.Context(), largeSubnet)
		require.NoError(t, err)
		w.Throttle(time.Minute)
		want = map[string]instance.State{}
		for _, id := range ids[120:130] {
			h.MustDelete(id)
			want[id] = providertest.Deleted
		}
		for range 10 {
			// The room of the subnet was read before.
			id := h.MustCreate(spec())
			want[id] = instance.Running
			ids = append(ids, id)
		}
		h.Await(workers, want)
		w.expectMade(ids...)
		assert.Len(t, w.Terminated(), 130)
		assert.Len(t, h.List(workers), instances-120)
		assert.Empty(t, h.Failures)
	})
}

// TestDemandALimitOfCalls: with the limits of the service, 500 launches at once at full size
// succeed, and so do the terminations, and no call is one too many.
func TestDemandALimitOfCalls(t *testing.T) {
	s := newRegion()
	s.Writes = newLimiter(2, 5)
	s.Reads = newLimiter(5, 20)
	inBubble(t, s, func(t *testing.T, w *world) {
		h := w.startProvider()
		want := map[string]instance.State{}
		var ids []string
		launches := tier.Pick(100, 500)
		for range launches {
			ids = append(ids, h.MustCreate(spec()))
			want[ids[len(ids)-1]] = instance.Running
		}
		h.Await(workers, want)
		w.expectMade(ids...)
		assert.Empty(t, h.Failures)
		assert.Equal(t, launches, w.Calls()["RunInstances"], "a call that is rejected is repeated")
		for _, id := range ids {
			h.MustDelete(id)
			want[id] = providertest.Deleted
		}
		h.Await(workers, want)
		assert.Empty(t, w.Existing())
		assert.Empty(t, h.Failures)
		assert.Equal(t, launches/50, w.Calls()["TerminateInstances"])
	})
}

// TestDemandAFailedLaunchHasAReason, and the next launches wait longer and longer.
func TestDemandAFailedLaunchHasAReason(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		h := w.startProvider()
		w.FailLaunches(1000, "Client.VolumeLimitExceeded", "Client.VolumeLimitExceeded: Volume limit exceeded")
		r := &wanted{Harness: h, world: w, spec: spec()}
		r.during(30 * time.Minute)
		made := len(w.Made())
		// 30 s, 1, 2, 4 and 8 min, and then every 10 min.
		if made < 5 || made > 7 {
			t.Errorf("%d launches in half an hour", made)
		}
		assert.Len(t, h.Failures, made)
		require.ErrorContains(t, (<-h.Failures).Err, "the service has terminated the instance: Client.VolumeLimitExceeded: Volume limit exceeded")
		assert.LessOrEqual(t, len(h.List(workers)), 1, "failed instances that were terminated are not listed")
		w.FailLaunches(0, "", "")
		r.during(30 * time.Minute)
		assert.Equal(t, map[string]instance.State{r.id: instance.Running}, h.States(workers))
	})
}

// TestDemandAFailedLaunchIsFoundByAnotherProcess, which knows the record. Without a record it
// is nothing: EC2 shows it for an hour.
func TestDemandAFailedLaunchIsFoundByAnotherProcess(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		w.FailLaunches(1, "Server.InternalError", "Server.InternalError: Internal error on launch")
		r := request(t)
		record := w.launch(r)
		time.Sleep(time.Minute)
		h := w.startProvider()
		assert.Empty(t, h.List(workers))
		h.Provider.(provider.Expecter).Expect([]instance.VM{{ID: r.ID, ProviderID: record.ProviderID, Group: workers}})
		h.Await(workers, map[string]instance.State{r.ID: instance.Failed})
		vm, _ := h.Get(r.ID)
		assert.Contains(t, vm.Reason, "Internal error on launch")
		h.MustDelete(r.ID)
		assert.Empty(t, h.List(workers), "although the service shows it for longer")
		h = w.restart(h)
		time.Sleep(10 * time.Minute)
		assert.Empty(t, h.List(workers))
	})
}

// TestDemandTags: users cannot replace the tags of the provider.
func TestDemandTags(t *testing.T) {
	o := &Options{}
	for _, key := range []string{"nstance:instance-id", "nstance:anything", "NSTANCE:shard", "aws:cloudformation:stack-name"} {
		errs := o.ValidateArgs(nil, map[string]any{"tags": map[string]any{key: "x"}})
		require.Len(t, errs, 1, key)
		assert.Contains(t, errs[0].Error(), "tags with the prefix")
	}
	// Text in a template is not known before it is rendered, but keys are.
	tags := tagsOf(testShard, spec(), map[string]string{"nstance:instance-id": "x", "Name": "mine"})
	assert.Empty(t, tags["nstance:instance-id"])
	assert.Equal(t, "mine", tags["Name"])

	many := map[string]any{}
	for n := range maxTags - ownTags + 1 {
		many[fmt.Sprint("key-", n)] = "x"
	}
	errs := o.ValidateArgs(nil, map[string]any{"tags": many})
	require.Len(t, errs, 1)
	full := spec()
	full.ID, full.Template = providertest.NewID(t), "worker"
	full.Origin = instance.Origin{OnDemand: true, IdempotencyKey: strings.Repeat("x", 1000), InfraConfigHash: "h"}
	assert.Len(t, tagsOf(testShard, full, nil), ownTags, "the tags of the provider")
}
