// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package plan

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
	"nstance.dev/operator/pkg/plugin/status"
)

// ordered returns the pool of plugintest at rest, whose shards report their orders: a2 is older than a1.
func ordered() *objects.Snapshot {
	s := plugintest.AtRest()
	plugintest.Order(s, "a", "a2", "a1")
	plugintest.Order(s, "b", "b1")
	plugintest.Order(s, "c", "c1")
	s.Pods, s.Budgets = map[string]objects.Read[corev1.Pod]{}, map[string]objects.Read[policyv1.PodDisruptionBudget]{}
	for i := range s.Nodes.Items {
		s.Pods[s.Nodes.Items[i].Name] = objects.Read[corev1.Pod]{}
	}
	return s
}

func changed(s *objects.Snapshot, change func(*v1beta1.NstanceMachinePoolSpec)) *v1beta1.NstanceMachinePool {
	pool := s.Pools.Items[0].DeepCopy()
	change(&pool.Spec)
	return pool
}

func TestPlans(t *testing.T) {
	for name, test := range map[string]struct {
		replicas int32
		// prepare changes the objects, and returns the changed pool if the pool changes.
		prepare func(*objects.Snapshot) *v1beta1.NstanceMachinePool
		blocked bool
	}{
		"nothing-changes": {replicas: 4},
		"scale-up":        {replicas: 9},
		"scale-down":      {replicas: 2},
		"to-zero":         {replicas: 0},
		"drift": {replicas: 3, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			plugintest.Group(s, "a").Status.DeletionOrder[0].Reason = "config-drift"
			plugintest.Group(s, "a").Status.DeletionOrder[1].Reason = "config-drift"
			return nil
		}},
		"an-older-server": {replicas: 2, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			plugintest.Group(s, "a").Status.DeletionOrder = nil
			return nil
		}},
		"not-running-yet": {replicas: 3, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			group := plugintest.Group(s, "a")
			group.Spec.Size = 3
			return nil
		}},
		"shard-away": {replicas: 2, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			group := plugintest.Group(s, "a")
			plugintest.SetCondition(&group.Status.Conditions, v1beta1.ConditionShardReachable, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable, "")
			group.Status.LastSyncTime = ptr.To(plugintest.Ago(0))
			return nil
		}},
		"minimum": {replicas: 2, blocked: true, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			plugintest.Group(s, "a").Status.MinReplicas = ptr.To[int32](2)
			plugintest.Group(s, "b").Status.MinReplicas = ptr.To[int32](1)
			return nil
		}},
		"paused": {replicas: 2, blocked: true, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			plugintest.SetCondition(&s.Pools.Items[0].Status.Conditions, v1beta1.ConditionPaused, metav1.ConditionTrue, v1beta1.ReasonPaused, "the Cluster is paused")
			return nil
		}},
		"guards": {replicas: 1, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			s.Pools.Items[0].Spec.ScaleDown = &v1beta1.ScaleDownGuards{
				MaxInFlight: ptr.To(intstr.FromInt32(1)), StabilizationSeconds: ptr.To[int32](300), MinReadySeconds: ptr.To[int32](30),
				PauseWhile: []v1beta1.PoolState{v1beta1.PauseWhileDrainBlocked},
			}
			return nil
		}},
		"a-Pod-blocks": {replicas: 3, blocked: true, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			plugintest.AddPod(s, "a2", "web", nil)
			plugintest.AddPod(s, "a2", "free", nil)
			plugintest.AddBudget(s, "keep", "web", 0)
			return nil
		}},
		"another-template": {replicas: 4, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			return changed(s, func(spec *v1beta1.NstanceMachinePoolSpec) {
				spec.Template, spec.Vars = "large", map[string]string{"role": "web"}
			})
		}},
		"rotation": {replicas: 4, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			plugintest.Group(s, "a").Status.DeletionOrder[0].Reason = "config-drift"
			pool := &s.Pools.Items[0]
			pool.Spec.Rotation = &v1beta1.RotationPolicy{
				MaxSurge: ptr.To(intstr.FromString("50%")), Order: v1beta1.RotationShardByShard, Canary: 1, BakeSeconds: ptr.To[int32](600),
				MinReadySeconds: ptr.To[int32](30), PauseWhile: []v1beta1.PoolState{v1beta1.PauseWhileDrainBlocked},
				Windows: []v1beta1.TimeWindow{{Schedule: "0 2 * * *", DurationMinutes: 60}},
			}
			plugintest.SetCondition(&pool.Status.Conditions, v1beta1.ConditionRollingOut, metav1.ConditionTrue, v1beta1.ReasonOutsideWindow,
				"1 of 4 instances are outdated (config-drift 1): the next window opens at 2026-01-03T02:00:00Z")
			return nil
		}},
		"rotate-all": {replicas: 4, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			return changed(s, func(spec *v1beta1.NstanceMachinePoolSpec) {
				spec.Rotation = &v1beta1.RotationPolicy{
					MaxUnavailable: ptr.To(intstr.FromInt32(1)), Canary: 1, Paused: ptr.To(true), After: ptr.To(plugintest.Ago(0)),
				}
			})
		}},
		"other-shards": {replicas: 4, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			return changed(s, func(spec *v1beta1.NstanceMachinePoolSpec) { spec.Shards = []v1beta1.Identifier{"b", "c", "d"} })
		}},
		"machines": {replicas: 2, prepare: func(s *objects.Snapshot) *v1beta1.NstanceMachinePool {
			withMachines(s, "c1")
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := ordered()
			options := Options{Pool: plugintest.Pool, Replicas: &test.replicas}
			if test.prepare != nil {
				options.Changed = test.prepare(s)
			}
			got, err := Build(s, options)
			require.NoError(t, err)
			assert.Equal(t, test.blocked, got.IsBlocked())
			var printed bytes.Buffer
			require.NoError(t, Print(&printed, got, status.PrintOptions{Now: plugintest.Now}))
			plugintest.Golden(t, name+".txt", printed.String())
			plugintest.Golden(t, name+".yaml", plugintest.YAML(t, got))
		})
	}
}

// withMachines gives each instance a Machine named after it, and annotates some of them for deletion.
func withMachines(s *objects.Snapshot, annotated ...string) {
	s.Pools.Items[0].Status.InfrastructureMachineKind = v1beta1.MachineKind
	for _, group := range s.ShardGroups.Items {
		for _, next := range group.Status.DeletionOrder {
			member := v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{
				Namespace: plugintest.Namespace, Name: next.Instance, OwnerReferences: []metav1.OwnerReference{plugintest.PoolOwner()},
			}}
			member.Spec.Shard, member.Spec.ProviderID = group.Spec.Shard, next.ProviderID
			machine := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: plugintest.Namespace, Name: next.Instance}}
			machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: next.Instance}
			for _, name := range annotated {
				if name == next.Instance {
					machine.Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: ""}
				}
			}
			s.NstanceMachines.Items = append(s.NstanceMachines.Items, member)
			s.Machines.Items = append(s.Machines.Items, machine)
		}
	}
}

// A plan never claims to be exact while a shard may have instances that no object has, or is not
// known to have the settings.
func TestExact(t *testing.T) {
	exact := func(change func(*v1beta1.NstanceShardGroup)) bool {
		s := ordered()
		change(plugintest.Group(s, "a"))
		got, err := Build(s, Options{Pool: plugintest.Pool, Replicas: ptr.To[int32](3)})
		require.NoError(t, err)
		require.Equal(t, "a", got.Shards[0].Name)
		return got.Shards[0].Exact
	}
	assert.True(t, exact(func(*v1beta1.NstanceShardGroup) {}))
	for name, change := range map[string]func(*v1beta1.NstanceShardGroup){
		"another generation": func(g *v1beta1.NstanceShardGroup) { g.Generation = 7 },
		"an instance drains": func(g *v1beta1.NstanceShardGroup) { g.Status.DrainingReplicas = ptr.To[int32](1) },
		"a surplus instance": func(g *v1beta1.NstanceShardGroup) { g.Status.Replicas = ptr.To[int32](3) },
		"a missing instance": func(g *v1beta1.NstanceShardGroup) { g.Status.Replicas = ptr.To[int32](1) },
		"a replacement":      func(g *v1beta1.NstanceShardGroup) { g.Status.DeletionOrder[1].Reason = "expired" },
		"no order":           func(g *v1beta1.NstanceShardGroup) { g.Status.DeletionOrder = nil },
		"not connected": func(g *v1beta1.NstanceShardGroup) {
			plugintest.SetCondition(&g.Status.Conditions, v1beta1.ConditionShardReachable, metav1.ConditionUnknown, v1beta1.ReasonNotSynced, "")
		},
	} {
		t.Run(name, func(t *testing.T) { assert.False(t, exact(change)) })
	}
}

// What cannot be read is unknown, and no number is made up.
func TestPlanOfWhatCannotBeRead(t *testing.T) {
	s := ordered()
	s.ShardGroups = objects.Unread[v1beta1.NstanceShardGroup]("forbidden to list nstanceshardgroups")
	got, err := Build(s, Options{Pool: plugintest.Pool, Replicas: ptr.To[int32](2)})
	require.NoError(t, err)
	assert.Equal(t, "forbidden to list nstanceshardgroups", got.Blocked)
	assert.Equal(t, []string{"forbidden to list nstanceshardgroups"}, got.Unknown)
	s = ordered()
	s.MachinePools = objects.Unread[clusterv1.MachinePool]("forbidden to list machinepools")
	got, err = Build(s, Options{Pool: plugintest.Pool})
	require.NoError(t, err)
	assert.Equal(t, "forbidden to list machinepools", got.Blocked)
	_, err = Build(s, Options{Pool: "other"})
	assert.EqualError(t, err, "plan pool other: the pool was not read")
}

// A policy that makes instances outdated replaces them; another one does not.
func TestWhichPoliciesReplaceInstances(t *testing.T) {
	now, earlier := plugintest.Ago(0), plugintest.Ago(time.Hour)
	for name, test := range map[string]struct {
		before, after *v1beta1.RotationPolicy
		want          bool
	}{
		"a policy":           {nil, &v1beta1.RotationPolicy{Canary: 1}, false},
		"a time":             {nil, &v1beta1.RotationPolicy{After: &now}, true},
		"another time":       {&v1beta1.RotationPolicy{After: &earlier}, &v1beta1.RotationPolicy{After: &now}, true},
		"the same time":      {&v1beta1.RotationPolicy{After: &now}, &v1beta1.RotationPolicy{After: &now, Canary: 1}, false},
		"no time any more":   {&v1beta1.RotationPolicy{After: &now}, &v1beta1.RotationPolicy{Canary: 1}, false},
		"no policy any more": {&v1beta1.RotationPolicy{After: &now}, nil, false},
		"an age":             {nil, &v1beta1.RotationPolicy{MaxAgeSeconds: 3600}, true},
		"no age any more":    {&v1beta1.RotationPolicy{MaxAgeSeconds: 3600}, &v1beta1.RotationPolicy{Canary: 1}, false},
	} {
		assert.Equal(t, test.want, outdates(test.before, test.after), name)
	}
}

// Only the instances of a candidate that is removed are replaced.
func TestWhichCandidatesReplaceInstances(t *testing.T) {
	of := func(candidates ...v1beta1.Candidate) v1beta1.NstanceMachinePoolSpec {
		return v1beta1.NstanceMachinePoolSpec{Candidates: candidates}
	}
	alone := func(instanceType string) v1beta1.NstanceMachinePoolSpec {
		return v1beta1.NstanceMachinePoolSpec{GroupSettings: v1beta1.GroupSettings{InstanceType: instanceType}}
	}
	spot := v1beta1.Candidate{Name: "spot", InstanceType: "large", Market: v1beta1.MarketSpot}
	base := v1beta1.Candidate{Name: "base", InstanceType: "large", Market: v1beta1.MarketStandard}
	open := v1beta1.Candidate{Name: "any", InstanceType: "large"}
	bounded, renamed := spot, spot
	bounded.MaxReplicas, renamed.Name = ptr.To(intstr.FromInt32(2)), "cheap"
	const replacesSpot = "each shard replaces its instances of spot (large Spot), one at a time or as spec.rotation says"
	for name, test := range map[string]struct {
		before, after v1beta1.NstanceMachinePoolSpec
		returns       int32
		want          string
		replaces      bool
	}{
		"added":               {before: of(spot), after: of(spot, base), want: newCandidates},
		"reordered":           {before: of(spot, base), after: of(base, spot), want: newCandidates},
		"another maximum":     {before: of(spot, base), after: of(bounded, base), want: newCandidates},
		"another name":        {before: of(spot), after: of(renamed), want: newCandidates},
		"with a return":       {before: of(spot), after: of(base, spot), returns: 600, want: newCandidates + " at once; those that are not preferred are replaced later, as returnAfterSeconds and spec.rotation say"},
		"removed":             {before: of(spot, base), after: of(base), want: replacesSpot + "; others stay", replaces: true},
		"another market":      {before: of(spot), after: of(base), returns: 600, want: replacesSpot + "; others stay", replaces: true},
		"the template's":      {before: of(spot), after: of(open), want: replacesSpot + ", unless a candidate means the same with the values of the template; others stay", replaces: true},
		"the type is in them": {before: alone("large"), after: of(open, spot), want: newCandidates},
		"back to a type":      {before: of(open), after: alone("large"), want: newCandidates},
		"the type is not": {
			before: alone("huge"), after: of(spot), replaces: true,
			want: "each shard replaces its instances of huge, one at a time or as spec.rotation says, unless a candidate means the same with the values of the template; others stay",
		},
	} {
		test.after.ReturnAfterSeconds = test.returns
		found := changes(&v1beta1.NstanceMachinePool{Spec: test.before}, &v1beta1.NstanceMachinePool{Spec: test.after})
		for _, change := range found {
			if change.Setting == "candidates" || change.Setting == "instanceType" {
				assert.Equal(t, test.want, change.Effect, name)
				assert.Equal(t, test.replaces, change.Replaces, name)
			}
		}
		assert.NotEmpty(t, found, name)
	}
}

// A new setting must say what it does to instances that run.
func TestEverySettingHasAnEffect(t *testing.T) {
	var fields func(reflect.Type) []string
	fields = func(of reflect.Type) (names []string) {
		for i := range of.NumField() {
			field := of.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" && field.Anonymous {
				names = append(names, fields(field.Type)...)
				continue
			}
			names = append(names, name)
		}
		return names
	}
	var known []string
	for _, effect := range effects {
		known = append(known, effect.setting)
		assert.NotEmpty(t, effect.text, effect.setting)
	}
	assert.ElementsMatch(t, fields(reflect.TypeFor[v1beta1.NstanceMachinePoolSpec]()), known)
}
