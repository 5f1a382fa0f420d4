// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shortfall

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A shortfall is due after it has lasted for afterSeconds, and begins again when it was not reported.
func TestTimes(t *testing.T) {
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "workers", UID: "1"}}
	pool.Spec.Shortfall = &v1beta1.ShortfallSettings{AfterSeconds: 60}
	var recorded Times
	begin := time.Unix(1_000_000, 0)
	observe := func(second int, missing int32) (due, mayMove bool, wait time.Duration) {
		found, mayMove, wait := recorded.Observe(pool, []Shard{{ID: "a", Missing: missing}, {ID: "b"}}, begin.Add(time.Duration(second)*time.Second))
		assert.False(t, found.Has("b"))
		return found.Has("a"), mayMove, wait
	}
	expect := func(second int, missing int32, due, mayMove bool, wait int) {
		t.Helper()
		gotDue, gotMove, gotWait := observe(second, missing)
		assert.Equal(t, []any{due, mayMove, time.Duration(wait) * time.Second}, []any{gotDue, gotMove, gotWait}, "second %d", second)
	}
	expect(0, 1, false, false, 60)
	expect(59, 1, false, false, 1)
	expect(60, 1, true, true, 0)
	expect(70, 0, false, true, 0)
	expect(80, 1, false, true, 60)
	expect(140, 1, true, true, 0)
	recorded.Moved(cache.MetaObjectToName(pool), begin.Add(140*time.Second))
	expect(150, 1, true, false, 50)
	pool.UID = "2"
	expect(200, 1, false, false, 60)
	recorded.Remove(cache.MetaObjectToName(pool))
	expect(260, 1, false, false, 60)
}

func TestLoans(t *testing.T) {
	shards := []Shard{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	assert.Empty(t, Loans(shards, []int32{0, 0, 0}, 9))
	assert.Empty(t, Loans(shards, nil, 9))
	assert.Equal(t, "3 of 9 instances are lent by shard a to shard b (3)", Loans(shards, []int32{3, -3, 0}, 9))
	assert.Equal(t, "3 of 9 instances are lent by shards a (1), b (2) to shard c (3)", Loans(shards, []int32{1, 2, -3}, 9))
	assert.Equal(t, "2 of 9 instances are lent by shard a to other shards", Loans(shards, []int32{2, 0, 0}, 9))
}

func TestCondition(t *testing.T) {
	short := []Shard{{ID: "a", Missing: 2, Message: "out of capacity: quota"}, {ID: "b"}}
	moves := &v1beta1.NstanceMachinePool{}
	moves.Spec.Shortfall = &v1beta1.ShortfallSettings{Policy: v1beta1.ShortfallMove}
	for _, test := range []struct {
		pool    *v1beta1.NstanceMachinePool
		shards  []Shard
		loans   string
		status  metav1.ConditionStatus
		reason  string
		message string
	}{
		{moves, []Shard{{ID: "a"}}, "", metav1.ConditionTrue, v1beta1.ReasonNoShortfall, ""},
		{&v1beta1.NstanceMachinePool{}, short, "", metav1.ConditionFalse, v1beta1.ReasonWaiting, "shards cannot create 2 instances: a lacks 2 (out of capacity: quota)"},
		{
			moves, short, "", metav1.ConditionFalse, v1beta1.ReasonZoneOutOfStock,
			"shards cannot create 2 instances: a lacks 2 (out of capacity: quota); they move after 5m0s to connected shards without a shortfall",
		},
		{moves, []Shard{{ID: "a"}}, "2 are lent", metav1.ConditionFalse, v1beta1.ReasonMoved, "2 are lent"},
		{
			moves, short, "2 are lent", metav1.ConditionFalse, v1beta1.ReasonMoved,
			"2 are lent; shards cannot create 2 instances: a lacks 2 (out of capacity: quota)",
		},
	} {
		want := metav1.Condition{Type: v1beta1.ConditionCapacityAvailable, Status: test.status, Reason: test.reason, Message: test.message}
		assert.Equal(t, want, Condition(test.pool, test.shards, test.loans))
	}
}
