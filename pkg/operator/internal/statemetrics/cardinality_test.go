// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package statemetrics

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/metricstest"
)

const (
	manyPools = 1000
	// seriesPerShard and seriesPerGroup are the series of each shard, and of each group on
	// each shard: desired, running, draining, shortfall, and one for a group that is not
	// ready.
	seriesPerShard = 7
	seriesPerGroup = 5
	// machineStates are those of NstanceMachines.
	machineStates = 5
)

// The number of series grows with groups × shards. More instances, and more drains, are no
// more series (docs/operations.md#metrics).
func TestSeriesOf1000PoolsOn3Shards(t *testing.T) {
	ids := []string{"a", "b", "c"}
	for _, test := range []struct {
		name        string
		instances   int
		machinesPer int
		want        int
	}{
		{name: "without Machines", instances: 1, want: 3*seriesPerShard + 3*manyPools*seriesPerGroup},
		{name: "with ten times as many instances", instances: 10, want: 3*seriesPerShard + 3*manyPools*seriesPerGroup},
		{name: "with Machines in every state", instances: 1, machinesPer: 2 * machineStates, want: 3*seriesPerShard + 3*manyPools*(seriesPerGroup+machineStates)},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, c := newSources(ids...)
			for n := range manyPools {
				for _, id := range ids {
					fill(t, s, fmt.Sprint("pool-", n), id, test.instances, test.machinesPer)
				}
			}
			if got := len(metricstest.SeriesOf(t, c)); got != test.want {
				t.Errorf("%d series, want %d", got, test.want)
			}
		})
	}
}

// fill adds a group to a shard, with so many instances, all of which are being drained, and
// machines.
func fill(t *testing.T, s *sources, group, id string, instances, machines int) {
	t.Helper()
	object := newShardGroup(group, id, int32(instances))
	object.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Scaling"}}
	require.NoError(t, s.shardGroups.Add(object))
	reported := shard.Group{Key: group, ActualSize: int32(instances)}
	for i := range instances {
		instance := fmt.Sprint(group, "-", i)
		reported.Instances = append(reported.Instances, shard.Instance{ID: instance})
		s.shards.ByID[id].Notices[instance] = shard.DeletionNotice{InstanceID: instance, Group: group, State: shard.Draining}
	}
	s.shards.SetGroup(id, reported)
	for i := range machines {
		machine := &v1beta1.NstanceMachine{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(group, id, i)},
			Spec:       v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: v1beta1.Identifier(group)}},
			Status:     v1beta1.NstanceMachineStatus{Shard: id, InstanceID: "i"},
		}
		switch i % machineStates {
		case 0:
			machine.DeletionTimestamp = &metav1.Time{}
		case 1:
			machine.Status.InstanceID = ""
		case 2:
			machine.Status.Initialization.Provisioned = ptr.To(true)
		case 3:
			machine.Status.Initialization.Provisioned, machine.Status.Ready = ptr.To(true), ptr.To(true)
		}
		require.NoError(t, s.machines.Add(machine))
	}
}
