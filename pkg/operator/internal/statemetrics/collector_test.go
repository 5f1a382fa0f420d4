// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package statemetrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	listers "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// sources has fakes of the caches that a Collector reads.
type sources struct {
	shardtest.Groups
	shards      *shardtest.Shards
	links       map[string]shard.Link
	shardGroups cache.Indexer
	machines    cache.Indexer
}

func (s *sources) Link(id string) shard.Link { return s.links[id] }

// notices implements Notices for the shards of sources.
type notices struct {
	shardtest.Notices
	last map[string]time.Time
}

func (n notices) LastMessage(id string) time.Time { return n.last[id] }

func newSources(shards ...string) (*sources, *Collector) {
	fake := shardtest.New(shards...)
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	s := &sources{
		Groups: fake.Groups(), shards: fake, links: map[string]shard.Link{},
		shardGroups: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers),
		machines:    cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers),
	}
	return s, New(Sources{
		Shards: fake.Shards, Groups: s, Notices: notices{Notices: fake.Notices(), last: map[string]time.Time{"a": time.Unix(200, 0)}},
		ShardGroups: listers.NewNstanceShardGroupLister(s.shardGroups).NstanceShardGroups("default"),
		Machines:    listers.NewNstanceMachineLister(s.machines).NstanceMachines("default"),
	})
}

func newShardGroup(group, id string, size int32) *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v1beta1.ShardGroupName(group, id)},
		Spec:       v1beta1.NstanceShardGroupSpec{Group: v1beta1.Identifier(group), Shard: v1beta1.Identifier(id), Size: size},
	}
}

func TestShards(t *testing.T) {
	s, c := newSources("a", "b", "c")
	s.links["a"] = shard.Link{LastList: time.UnixMilli(100_500), LastMessage: time.Unix(90, 0), Reconnects: 2}
	for id, reason := range map[string]error{"b": &shard.WrongServerError{Unverified: "another one"}, "c": assert.AnError} {
		s.shards.ByID[id].Reachable, s.shards.ByID[id].Lost = false, reason
	}
	s.shards.ByID["c"].Synced = false
	assert.Equal(t, []string{
		`nstance_operator_shard_connected{shard="a"} 1`,
		`nstance_operator_shard_connected{shard="b"} 0`,
		`nstance_operator_shard_connected{shard="c"} 0`,
		`nstance_operator_shard_identity_verified{shard="a"} 1`,
		`nstance_operator_shard_identity_verified{shard="b"} 0`,
		`nstance_operator_shard_last_list_timestamp_seconds{shard="a"} 100.5`,
		`nstance_operator_shard_last_list_timestamp_seconds{shard="b"} 0`,
		`nstance_operator_shard_last_list_timestamp_seconds{shard="c"} 0`,
		`nstance_operator_shard_last_stream_message_timestamp_seconds{shard="a",stream="groups"} 90`,
		`nstance_operator_shard_last_stream_message_timestamp_seconds{shard="a",stream="instances"} 200`,
		`nstance_operator_shard_last_stream_message_timestamp_seconds{shard="b",stream="groups"} 0`,
		`nstance_operator_shard_last_stream_message_timestamp_seconds{shard="b",stream="instances"} 0`,
		`nstance_operator_shard_last_stream_message_timestamp_seconds{shard="c",stream="groups"} 0`,
		`nstance_operator_shard_last_stream_message_timestamp_seconds{shard="c",stream="instances"} 0`,
		`nstance_operator_shard_reconnects_total{shard="a"} 2`,
		`nstance_operator_shard_reconnects_total{shard="b"} 0`,
		`nstance_operator_shard_reconnects_total{shard="c"} 0`,
		`nstance_operator_shard_synced{shard="a"} 1`,
		`nstance_operator_shard_synced{shard="b"} 1`,
		`nstance_operator_shard_synced{shard="c"} 0`,
	}, metricstest.SeriesOf(t, c))
}

// The names of candidates are labels only as far as the shard group has them, and a name that occurs
// twice does not end the scrape.
func TestCandidates(t *testing.T) {
	s, c := newSources("a", "b")
	for _, id := range []string{"a", "b"} {
		object := newShardGroup("workers", id, 3)
		object.Spec.Candidates = []v1beta1.ShardCandidate{{Name: "base"}, {Name: "spot"}, {Name: "base"}}
		require.NoError(t, s.shardGroups.Add(object))
	}
	s.shards.SetGroup("a", shard.Group{Key: "workers", CandidateUse: []shard.CandidateUse{
		{Name: "base", Instances: 2}, {Name: "spot"}, {Name: "other", Instances: 9},
	}})
	s.shards.SetGroup("b", shard.Group{Key: "workers"})
	var got []string
	for _, series := range metricstest.SeriesOf(t, c) {
		if strings.Contains(series, "candidate") {
			got = append(got, series)
		}
	}
	assert.Equal(t, []string{
		`nstance_operator_group_candidate_instances{candidate="base",group="workers",shard="a"} 2`,
		`nstance_operator_group_candidate_instances{candidate="spot",group="workers",shard="a"} 0`,
	}, got)
}

func TestTheLimitThatAShardExceeds(t *testing.T) {
	s, c := newSources("a", "b")
	s.shards.ByID["a"].Reachable = false
	s.shards.ByID["a"].Lost = fmt.Errorf("list: %w", shard.Exceeds(shard.LimitGroups, "groups", shard.MaxGroups+1, shard.MaxGroups))
	var got []string
	for _, series := range metricstest.SeriesOf(t, c) {
		if strings.Contains(series, "limit") {
			got = append(got, series)
		}
	}
	assert.Equal(t, []string{`nstance_operator_shard_limit_exceeded{limit="groups",shard="a"} 1`}, got)
}

func TestGroups(t *testing.T) {
	s, c := newSources("a", "b", "c")
	ready := newShardGroup("workers", "a", 3)
	ready.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReady}}
	scaling := newShardGroup("workers", "b", 2)
	scaling.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Scaling"}}
	for _, object := range []*v1beta1.NstanceShardGroup{ready, scaling, newShardGroup("workers", "c", 1)} {
		require.NoError(t, s.shardGroups.Add(object))
	}
	s.shards.SetGroup("a", shard.Group{Key: "workers", ActualSize: 4, Shortfall: shard.Shortfall{Missing: 1}})
	s.shards.ByID["a"].Notices = map[string]shard.DeletionNotice{
		"i1": {Group: "workers", State: shard.Draining}, "i2": {Group: "workers", State: shard.Draining},
		"i3": {Group: "workers", State: shard.Deleting}, "i4": {Group: "other", State: shard.Draining},
	}
	// The groups of the last shard are not known.
	s.shards.ByID["c"].Synced = false
	var got []string
	for _, series := range metricstest.SeriesOf(t, c) {
		if strings.HasPrefix(series, "nstance_operator_group_") {
			got = append(got, series)
		}
	}
	assert.Equal(t, []string{
		`nstance_operator_group_desired_instances{group="workers",shard="a"} 3`,
		`nstance_operator_group_desired_instances{group="workers",shard="b"} 2`,
		`nstance_operator_group_desired_instances{group="workers",shard="c"} 1`,
		`nstance_operator_group_draining_instances{group="workers",shard="a"} 2`,
		`nstance_operator_group_draining_instances{group="workers",shard="b"} 0`,
		`nstance_operator_group_draining_instances{group="workers",shard="c"} 0`,
		`nstance_operator_group_not_ready{group="workers",reason="Scaling",shard="b"} 1`,
		`nstance_operator_group_running_instances{group="workers",shard="a"} 4`,
		`nstance_operator_group_running_instances{group="workers",shard="b"} 0`,
		`nstance_operator_group_shortfall_instances{group="workers",shard="a"} 1`,
		`nstance_operator_group_shortfall_instances{group="workers",shard="b"} 0`,
		`nstance_operator_group_shortfall_instances{group="workers",shard="c"} 0`,
	}, got)
}

func TestMachinesByState(t *testing.T) {
	s, c := newSources()
	machine := func(name string, status v1beta1.NstanceMachineStatus) *v1beta1.NstanceMachine {
		return &v1beta1.NstanceMachine{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}}, Status: status,
		}
	}
	provisioned := v1beta1.NstanceMachineInitialization{Provisioned: ptr.To(true)}
	deleting := machine("deleting", v1beta1.NstanceMachineStatus{Shard: "a", InstanceID: "i0"})
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	selected := machine("selected", v1beta1.NstanceMachineStatus{})
	selected.Spec.Shard = "b"
	for _, object := range []*v1beta1.NstanceMachine{
		deleting, selected,
		machine("new", v1beta1.NstanceMachineStatus{}),
		machine("provisioning", v1beta1.NstanceMachineStatus{Shard: "a", InstanceID: "i1"}),
		machine("first", v1beta1.NstanceMachineStatus{Shard: "a", InstanceID: "i2", Initialization: provisioned, Ready: ptr.To(true)}),
		machine("second", v1beta1.NstanceMachineStatus{Shard: "a", InstanceID: "i3", Initialization: provisioned, Ready: ptr.To(true)}),
		machine("stopped", v1beta1.NstanceMachineStatus{Shard: "a", InstanceID: "i4", Initialization: provisioned, Ready: ptr.To(false)}),
	} {
		require.NoError(t, s.machines.Add(object))
	}
	assert.Equal(t, []string{
		`nstance_operator_machines{group="workers",shard="",state="creating"} 1`,
		`nstance_operator_machines{group="workers",shard="a",state="deleting"} 1`,
		`nstance_operator_machines{group="workers",shard="a",state="not_running"} 1`,
		`nstance_operator_machines{group="workers",shard="a",state="provisioning"} 1`,
		`nstance_operator_machines{group="workers",shard="a",state="running"} 2`,
		`nstance_operator_machines{group="workers",shard="b",state="creating"} 1`,
	}, metricstest.SeriesOf(t, c))
}

func TestInformers(t *testing.T) {
	nodes := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0).Core().V1().Nodes().Informer()
	collector := Informers{"nodes": nodes}
	assert.Equal(t, []string{`nstance_operator_informer_synced{resource="nodes"} 0`}, metricstest.SeriesOf(t, collector))
	go nodes.RunWithContext(t.Context())
	require.True(t, cache.WaitForCacheSync(t.Context().Done(), nodes.HasSynced))
	got := metricstest.SeriesOf(t, collector)
	assert.Contains(t, got, `nstance_operator_informer_synced{resource="nodes"} 1`)
	for version, want := range map[string]float64{"12345": 12345, "": -1, "x": -1} {
		parsed, ok := parseVersion(version)
		if !ok {
			parsed = -1
		}
		assert.InDelta(t, want, parsed, 0, "resource version %q", version)
	}
}

const (
	manyPools = 1000
	// seriesPerShard and seriesPerGroup are the numbers of series of each shard, and of each
	// group on each shard: desired, running, draining, shortfall, and the reason of a group
	// that is not ready.
	seriesPerShard = 7
	seriesPerGroup = 5
	// machineStates is the number of states of NstanceMachines.
	machineStates = 5
)

// The number of series is bounded by groups × shards. More instances and more drains do not
// add series (docs/reference.md#metrics).
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

// fill adds a group to a shard, with instances that are all being drained, and machines.
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
