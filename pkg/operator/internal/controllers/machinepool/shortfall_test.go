// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// stockHarness is a pool of shards a, b and c whose servers have limited stock.
type stockHarness struct {
	*harness
	stock   map[string]int32
	running map[string]int32
}

func newStockHarness(t *testing.T, change func(*v1beta1.NstanceMachinePool)) *stockHarness {
	pool := newPool("a", "b", "c")
	pool.Spec.Shortfall = &v1beta1.ShortfallSettings{Policy: v1beta1.ShortfallMove, AfterSeconds: 60}
	if change != nil {
		change(pool)
	}
	h := &stockHarness{
		harness: newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0, "c": 0}), pool),
		stock:   map[string]int32{"a": 100, "b": 100, "c": 100}, running: map[string]int32{},
	}
	return h
}

// step lets the servers work towards the sizes of the shard groups, and syncs the pool.
func (h *stockHarness) step() (requeue time.Duration) {
	h.T.Helper()
	h.serve()
	_, requeue, err := h.sync()
	require.NoError(h.T, err)
	h.Show()
	return requeue
}

// serve lets the servers work towards the sizes of the shard groups.
func (h *stockHarness) serve() {
	for _, id := range []string{"a", "b", "c"} {
		group, err := h.controller.shardGroupLister.Get(v1beta1.ShardGroupName("workers", id))
		if apierrors.IsNotFound(err) {
			continue
		}
		size := group.Spec.Size
		if size < h.running[id] {
			h.T.Errorf("shard %s has to terminate %d running instances", id, h.running[id]-size)
		}
		h.running[id] = max(min(h.running[id], size), min(size, h.stock[id]))
		report := shard.Group{Key: "workers", Size: size, ListsInstances: true}
		for n := range size {
			instance := shard.Instance{ID: fmt.Sprintf("%s%d", id, n), State: shard.InstancePending}
			if n < h.running[id] {
				instance.State, instance.ProviderID = shard.InstanceRunning, "id-"+instance.ID
			}
			report.Instances = append(report.Instances, instance)
		}
		if missing := size - h.running[id]; missing > 0 {
			report.Shortfall = shard.Shortfall{Missing: missing, Message: "out of capacity: quota"}
		}
		h.Fake.SetGroup(id, report)
	}
}

func (h *stockHarness) shortfall() string {
	condition := meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionCapacityAvailable)
	if condition == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, condition.Message)
}

func (h *stockHarness) expectState(shortfall string, sizes ...int32) {
	h.T.Helper()
	assert.Equal(h.T, shortfall, h.shortfall())
	h.expectSizes(map[string]int32{"a": sizes[0], "b": sizes[1], "c": sizes[2]})
}

// restart drops the times of shortfalls, as a new process does.
func (h *stockHarness) restart() { h.controller.shortfalls.Remove(h.controller.key("workers")) }

const lentByA = "3 of 9 instances are lent by shard a to shards b (2), c (1)"

func TestInstancesMoveFromAZoneWithoutStock(t *testing.T) {
	h := newStockHarness(t, nil)
	h.stock["a"] = 0
	h.scale(9)
	h.step()
	h.Events()
	require.Equal(t, time.Minute, h.step())
	waiting := "shards cannot create 3 instances: a lacks 3 (out of capacity: quota)"
	h.expectState("False ZoneOutOfStock: "+waiting+"; they move after 1m0s to connected shards without a shortfall", 3, 3, 3)
	assert.Equal(t, []string{"Warning ZoneOutOfStock " + waiting + "; they move after 1m0s to connected shards without a shortfall"}, h.Events())
	h.Advance(time.Minute - time.Second)
	require.Equal(t, time.Second, h.step())
	h.expectState(h.shortfall(), 3, 3, 3)
	h.Advance(time.Second)
	h.step()
	h.step()
	h.expectState("False Moved: "+lentByA, 0, 5, 4)
	assert.Equal(t, "3 of 9 over a,b,c", h.shardGroup("a").Spec.Loan.String())
	assert.Equal(t, "-2 of 9 over a,b,c", h.shardGroup("b").Spec.Loan.String())
	assert.Equal(t, []string{"a2", "a1", "a0"}, reversed(h.shardGroup("a").Spec.RemoveFirst))
	assert.Equal(t, int32(9), *h.pool().Status.DesiredReplicas)
	assert.Len(t, h.Events(), 1)

	// The shard has stock again, and no running instance is terminated.
	h.stock["a"] = 100
	for range 5 {
		h.Advance(time.Hour)
		h.step()
	}
	h.restart()
	for range 5 {
		h.Advance(time.Hour)
		h.step()
	}
	h.expectState("False Moved: "+lentByA, 0, 5, 4)
	assert.Empty(t, h.Events())

	// Growth fills the lender first.
	h.scale(12)
	h.step()
	h.step()
	h.expectState("False Moved: 1 of 12 instances are lent by shard a to shard b (1)", 3, 5, 4)
	h.scale(15)
	h.step()
	h.step()
	h.expectState("True NoShortfall: ", 5, 5, 5)
	for _, id := range []string{"a", "b", "c"} {
		assert.Nil(t, h.shardGroup(id).Spec.Loan)
	}
	assert.Equal(t, []string{
		"Normal Scaled from 9 to 12 instances",
		"Normal NoShortfall no shard has a shortfall, and none has lent instances",
		"Normal Scaled from 12 to 15 instances",
	}, h.Events())
}

func reversed(list []string) (reverse []string) {
	for _, id := range list {
		reverse = append([]string{id}, reverse...)
	}
	return reverse
}

func TestWaitMovesNothing(t *testing.T) {
	h := newStockHarness(t, func(p *v1beta1.NstanceMachinePool) { p.Spec.Shortfall.Policy = "" })
	h.stock["a"] = 1
	h.scale(9)
	for range 5 {
		h.step()
		h.Advance(time.Hour)
	}
	h.expectState("False Waiting: shards cannot create 2 instances: a lacks 2 (out of capacity: quota)", 3, 3, 3)
	h.stock["a"] = 3
	h.step()
	h.step()
	h.expectState("True NoShortfall: ", 3, 3, 3)
}

// A shard that is not connected, or not read, is missing information.
func TestNothingMovesBecauseOfMissingInformation(t *testing.T) {
	h := newStockHarness(t, nil)
	h.stock["a"] = 0
	h.scale(9)
	h.step()
	h.step()
	h.Fake.Update(func() { h.Fake.ByID["a"].Reachable = false })
	h.Advance(time.Hour)
	h.step()
	h.expectState(h.shortfall(), 3, 3, 3)
	// The time begins again.
	h.Fake.Update(func() { h.Fake.ByID["a"].Reachable = true })
	h.step()
	h.expectState(h.shortfall(), 3, 3, 3)
	// Nothing can be lent to shards that are not connected.
	h.Fake.Update(func() { h.Fake.ByID["b"].Reachable, h.Fake.ByID["c"].Reachable = false, false })
	h.Advance(time.Hour)
	h.step()
	h.expectState(h.shortfall(), 3, 3, 3)
	h.Fake.Update(func() { h.Fake.ByID["c"].Reachable = true })
	h.step()
	h.step()
	h.expectState("False Moved: 3 of 9 instances are lent by shard a to shard c (3)", 0, 3, 6)
}

// A new leader waits again.
func TestANewLeaderBeginsAgain(t *testing.T) {
	h := newStockHarness(t, nil)
	h.stock["a"] = 0
	h.scale(9)
	h.step()
	h.step()
	h.Advance(time.Minute - time.Second)
	h.restart()
	require.Equal(t, time.Minute, h.step())
	h.Advance(time.Minute - time.Second)
	h.step()
	h.expectState(h.shortfall(), 3, 3, 3)
	h.Advance(time.Second)
	h.step()
	h.expectSizes(map[string]int32{"a": 0, "b": 5, "c": 4})
}

// The operator stops, or a write fails, between the writes of a move: the sum of the sizes
// never exceeds the replicas, and the next leader completes the move.
func TestAMoveIsInterrupted(t *testing.T) {
	for failing := range 3 {
		for _, only := range []bool{false, true} {
			for _, restarted := range []bool{false, true} {
				t.Run(fmt.Sprintf("at write %d, only there %t, restarted %t", failing, only, restarted), func(t *testing.T) {
					testInterruptedMove(t, failing, only, restarted)
				})
			}
		}
	}
}

func testInterruptedMove(t *testing.T, failing int, only, restarted bool) {
	h := newStockHarness(t, nil)
	h.stock["c"] = 0 // is listed last, and written first
	h.scale(9)
	h.step()
	h.step()
	writes, broken := 0, true
	h.PrependReactor("patch", "nstanceshardgroups", func(clienttesting.Action) (bool, runtime.Object, error) {
		writes++
		if broken && (writes > failing && !only || writes == failing+1) {
			return true, nil, apierrors.NewInternalError(fmt.Errorf("failed on purpose"))
		}
		return false, nil, nil
	})
	h.Advance(time.Minute)
	h.serve()
	_, _, err := h.sync()
	require.Error(t, err)
	h.Show()
	var sum int32
	for _, id := range []string{"a", "b", "c"} {
		sum += h.shardGroup(id).Spec.Size
	}
	assert.LessOrEqual(t, sum, int32(9))
	broken = false
	if restarted {
		h.restart()
	}
	for range 3 {
		h.step()
	}
	if failing == 0 && restarted {
		// Nothing was written, and the time begins again.
		h.expectSizes(map[string]int32{"a": 3, "b": 3, "c": 3})
		return
	}
	h.expectState("False Moved: 3 of 9 instances are lent by shard c to shards a (2), b (1)", 5, 4, 0)
}

func TestAShortfallEnqueuesThePool(t *testing.T) {
	h := newStockHarness(t, nil)
	h.scale(9)
	h.step()
	report := groupReport{listsInstances: true}
	key := groupOnShard{"a", "workers"}
	assert.True(t, h.controller.lastReported.set(key, report))
	assert.False(t, h.controller.lastReported.set(key, report))
	report.shortfall = shard.Shortfall{Missing: 1}
	assert.True(t, h.controller.lastReported.set(key, report))
}
