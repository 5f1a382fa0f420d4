// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/randfill"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/settingstest"
)

const (
	poolSpec   = "apply nstancemachinepools workers"
	poolStatus = "apply nstancemachinepools/status workers"
	groupA     = "apply nstanceshardgroups workers--a"
	groupB     = "apply nstanceshardgroups workers--b"
)

func TestSyncSpreadsAndThenWritesNothing(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0}), newPool("b", "a"))
	h.scale(5)
	// The status waits for the first report.
	h.expect(groupA, groupB)
	for shard, size := range map[string]int32{"b": 3, "a": 2} {
		group := h.shardGroup(shard)
		if group.Spec.Size != size {
			t.Errorf("shard %s has size %d, want %d", shard, group.Spec.Size, size)
		}
		if !metav1.IsControlledBy(group, h.pool()) || !slices.Contains(group.Finalizers, v1beta1.FinalizerShardGroup) ||
			group.Labels[v1beta1.LabelGroup] != "workers" || group.Labels[v1beta1.LabelShard] != shard {
			t.Errorf("shard group has the metadata %+v", group.ObjectMeta)
		}
	}

	h.report("a", func(g *v1beta1.NstanceShardGroup) { ready(g, "i-1", "i-2") })
	h.report("b", func(g *v1beta1.NstanceShardGroup) { ready(g, "i-5", "i-4", "i-3") })
	h.expect(poolSpec, poolStatus)
	pool := h.pool()
	if want := []string{"i-1", "i-2", "i-3", "i-4", "i-5"}; !slices.Equal(pool.Spec.ProviderIDList, want) {
		t.Errorf("provider ids are %q, want %q", pool.Spec.ProviderIDList, want)
	}
	if pool.Status.ObservedGeneration != pool.Generation {
		t.Errorf("observed generation %d of %d", pool.Status.ObservedGeneration, pool.Generation)
	}
	if !meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionReady) || *pool.Status.Replicas != 5 {
		t.Errorf("status is %+v", pool.Status)
	}

	h.Show()
	h.expect()
}

func TestSyncWritesOnlyTheGroupsThatDiffer(t *testing.T) {
	pool := newPool("a", "b")
	h := newHarness(t, withSizes(map[string]int32{"a": 2, "b": 2}), pool, ready(newShardGroup(pool, "a", 2), "i-1"), ready(newShardGroup(pool, "b", 2), "i-2"))
	h.scale(4)
	h.expect(poolSpec, poolStatus)
	h.Show()
	h.scale(5)
	h.expect(poolStatus, groupA)
}

// The specs that the operator has created are handed over once the pool has its shard groups: before,
// the replicas of a MachinePool count only if they have an owner.
func TestSyncHandsOverTheSpecs(t *testing.T) {
	pool := newPool("a")
	pool.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: controllers.FieldManager, Operation: metav1.ManagedFieldsOperationUpdate,
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:finalizers":{}},"f:spec":{"f:group":{}}}`)}}
	h := newHarness(t, withSizes(map[string]int32{"a": 2}), pool)
	machinePool := machinePool("workers", ptr.To[int32](2))
	machinePool.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: controllers.FieldManager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)},
		{Manager: "manager", Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:finalizers":{}}}`)},
	}
	machinePool.ResourceVersion = "7"
	h.Put(h.Informers.MachinePools, machinePool)
	h.CAPI.Show(t, machinePool)
	var patched []string
	h.PrependReactor("patch", "nstancemachinepools", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if patch := action.(clienttesting.PatchActionImpl); patch.PatchType == types.MergePatchType {
			patched = append(patched, string(patch.Patch))
		}
		return false, nil, nil
	})
	h.expect(groupA)
	if len(h.CAPI.Changed) > 0 || len(patched) > 0 {
		t.Errorf("handed over before the shard group exists: %q, %q", patched, h.CAPI.Changed)
	}
	h.Show()
	h.expect(poolStatus, "patch nstancemachinepools workers")
	want := `"managedFields":[{"manager":"nstance-operator","operation":"Update","fieldsV1":{"f:metadata":{"f:finalizers":{}}}}]`
	if len(patched) != 1 || !strings.Contains(patched[0], want) {
		t.Errorf("patched %q, want %s", patched, want)
	}
	want = `PATCH machinepools/workers {"metadata":{"managedFields":[{"manager":"manager","operation":"Update","fieldsV1":{"f:metadata":{"f:finalizers":{}}}}],"resourceVersion":"7"}}`
	if !slices.Equal(h.CAPI.Changed, []string{want}) {
		t.Errorf("changed %q, want %s", h.CAPI.Changed, want)
	}
}

func TestSyncOfAStaleCacheWritesNothing(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0}), newPool("a", "b"))
	h.scale(5)
	h.expect(groupA, groupB)
	h.scale(50)
	writes, requeue, err := h.sync()
	if err != nil || len(writes) > 0 || requeue != controller.StaleRetry {
		t.Errorf("wrote %q and waits %s for the caches, error %v", writes, requeue, err)
	}
	h.Show()
	h.expect(poolStatus, groupA, groupB)
}

func TestSyncEmptiesTheListAtZero(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, withSizes(map[string]int32{"a": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"))
	h.scale(1)
	h.expect(poolSpec, poolStatus)
	h.Show()
	h.scale(0)
	h.expect(poolStatus, groupA)
	h.report("a", func(g *v1beta1.NstanceShardGroup) { ready(g) })
	h.expect(poolSpec, poolStatus)
	got := h.pool()
	if len(got.Spec.ProviderIDList) != 0 || *got.Status.Replicas != 0 || !*got.Status.Ready {
		t.Errorf("list %q, replicas %d, ready %t", got.Spec.ProviderIDList, *got.Status.Replicas, *got.Status.Ready)
	}
	h.Show()
	h.expect()
}

func TestSyncDeletesTheGroupOfARemovedShardByItsUID(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, withSizes(map[string]int32{"a": 0}), pool, ready(newShardGroup(pool, "a", 1)), ready(newShardGroup(pool, "b", 1)))
	h.scale(1)
	var options metav1.DeleteOptions
	h.PrependReactor("delete", "nstanceshardgroups", func(action clienttesting.Action) (bool, runtime.Object, error) {
		options = action.(clienttesting.DeleteActionImpl).DeleteOptions
		return false, nil, nil
	})
	h.expect(poolStatus, "delete nstanceshardgroups workers--b")
	if options.Preconditions == nil || options.Preconditions.UID == nil || *options.Preconditions.UID != "uid-b" {
		t.Errorf("deleted with the preconditions %+v", options.Preconditions)
	}
	h.Show()
	h.expect()
}

func TestSyncWritesProviderIDsAsOnTheNodes(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, withSizes(map[string]int32{"a": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"))
	h.scale(1)
	h.Put(h.Informers.Nodes, node("one", "aws:///us-west-2a/i-1"))
	h.expect(poolSpec, poolStatus)
	if got := h.pool().Spec.ProviderIDList; !slices.Equal(got, []string{"aws:///us-west-2a/i-1"}) {
		t.Errorf("provider ids are %q", got)
	}

	h.Show()
	h.Put(h.Informers.Nodes, node("two", "aws:///us-west-2b/i-1"))
	h.expect(poolStatus)
	if got := h.pool().Spec.ProviderIDList; !slices.Equal(got, []string{"aws:///us-west-2a/i-1"}) {
		t.Errorf("with a second Node the provider ids are %q", got)
	}
	if got := h.Events(); len(got) != 1 {
		t.Errorf("recorded %q, want one event about the second Node", got)
	}
	h.Show()
	h.expect()
}

// Caches return objects in any order.
func TestSyncWithTwoAmbiguousIDsWritesNothing(t *testing.T) {
	pool := newPool("a", "b", "c", "d")
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1, "c": 1, "d": 1}), pool,
		ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"),
		ready(newShardGroup(pool, "c", 1), "i-3"), ready(newShardGroup(pool, "d", 1), "i-4"))
	h.scale(4)
	for _, id := range []string{"i-1", "i-2", "i-3", "i-4"} {
		h.Put(h.Informers.Nodes, node("one-"+id, "aws:///a/"+id), node("two-"+id, "aws:///b/"+id))
	}
	h.expect(poolSpec, poolStatus)
	h.Show()
	for range 20 {
		h.expect()
	}
}

func TestSyncDoesNotCountTheGroupsOfAFormerPool(t *testing.T) {
	former := newPool("a", "b")
	former.UID = "uid-of-the-former-pool"
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), newPool("a"), ready(newShardGroup(former, "b", 4), "i-1"))
	h.scale(1)
	h.expect(groupA)
	h.report("a", func(g *v1beta1.NstanceShardGroup) { ready(g) })
	h.Fake.ByID["b"].Synced = false
	h.expect(poolStatus)
	if got := h.pool(); len(got.Spec.ProviderIDList) > 0 || *got.Status.Replicas != 1 {
		t.Errorf("the new pool has the ids %q and %d replicas", got.Spec.ProviderIDList, *got.Status.Replicas)
	}
}

func TestSyncOfAnUnknownShardRecordsOneEvent(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0}), newPool("a", "nowhere"))
	h.scale(5)
	h.expect(poolStatus)
	h.Show()
	h.expect()
	want := []string{"Warning UnknownShard spec.shards names shards that are not configured: nowhere"}
	if got := h.Events(); !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestSyncReportsWhatItCanWhenAGroupCannotBeWritten(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0}), newPool("a", "b"))
	h.scale(5)
	rejected := errors.New("rejected")
	h.Fail(groupA, rejected)
	writes, _, err := h.sync()
	if !errors.Is(err, rejected) {
		t.Errorf("got error %v, want one for the retry", err)
	}
	if want := []string{poolStatus, groupA, groupB}; !slices.Equal(writes, want) {
		t.Errorf("wrote %q, want %q", writes, want)
	}
	h.Fail(groupA, nil)
	h.Show()
	h.expect(groupA)
}

func TestSyncOfADeletedPoolWritesNothing(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0}))
	h.scale(5)
	h.expect()

	pool := newPool("a")
	pool.DeletionTimestamp, pool.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{"example.com/other"}
	h = newHarness(t, withSizes(map[string]int32{"a": 0}), pool)
	h.scale(5)
	h.expect()
}

func TestSyncCreatesTheMachinePoolWithTheCurrentReplicas(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4, "b": 3}), newPool("a", "b"))
	h.expect()
	if len(h.CAPI.Created) != 1 {
		t.Fatalf("created %v", h.CAPI.Created)
	}
	made := &clusterv1.MachinePool{}
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(h.CAPI.Created[0].Object, made))
	spec := made.Spec.Template.Spec
	if made.Name != "workers" || ptr.Deref(made.Spec.Replicas, -1) != 7 {
		t.Errorf("made %q with replicas %v", made.Name, made.Spec.Replicas)
	}
	if made.Spec.ClusterName != "cluster--default" || spec.ClusterName != "cluster--default" {
		t.Errorf("of clusters %q and %q", made.Spec.ClusterName, spec.ClusterName)
	}
	// Cluster API rejects a MachinePool without the name of a bootstrap Secret.
	if spec.Bootstrap.DataSecretName == nil || *spec.Bootstrap.DataSecretName != "" {
		t.Errorf("with the bootstrap Secret %v", spec.Bootstrap.DataSecretName)
	}
	want := clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: "NstanceMachinePool", Name: "workers"}
	if spec.InfrastructureRef != want {
		t.Errorf("for %+v, want %+v", spec.InfrastructureRef, want)
	}

	// The cache does not have it yet.
	h.Show()
	writes, requeue, err := h.sync()
	if err != nil || len(writes) > 0 || requeue != controller.StaleRetry || len(h.CAPI.Created) != 1 {
		t.Errorf("before the cache shows it: wrote %q, requeue %s, error %v, created %d", writes, requeue, err, len(h.CAPI.Created))
	}
	made.ResourceVersion = h.CAPI.Created[0].GetResourceVersion()
	require.NoError(t, h.Informers.MachinePools.GetIndexer().Add(made))
	h.expect(groupA, groupB)
}

func TestSyncCreatesZeroReplicasExplicitly(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0}), newPool("a"))
	h.expect()
	if len(h.CAPI.Created) != 1 {
		t.Fatalf("created %v", h.CAPI.Created)
	}
	spec := h.CAPI.Created[0].Object["spec"].(map[string]any)
	if replicas, ok := spec["replicas"]; !ok || replicas != int64(0) {
		t.Errorf("sent replicas %v, set %t; the default of Cluster API is 1", replicas, ok)
	}
}

func TestSyncAcceptsAMachinePoolOfAnotherClient(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), newPool("a"))
	h.CAPI.Taken = []string{"machinepools/workers"}
	h.expect()
	if len(h.CAPI.Created) > 0 {
		t.Errorf("created %v", h.CAPI.Created)
	}
}

func TestSyncDoesNotCreateTheMachinePoolBeforeEveryShardWasRead(t *testing.T) {
	pool := newPool("a", "b")
	h := newHarness(t, withSizes(map[string]int32{"a": 4, "b": 3}), pool)
	h.Fake.ByID["b"].Synced = false
	h.expect(poolStatus)
	if len(h.CAPI.Created) > 0 {
		t.Errorf("created %v from a part of the shards", h.CAPI.Created)
	}
	got := meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionReady)
	if got.Reason != v1beta1.ReasonNotSynced {
		t.Errorf("Ready says %s: %s", got.Reason, got.Message)
	}
}

// The API server may delete a pool whose finalizer was written during the deletion.
func TestMachinePoolOfAPoolThatWasDeletedMeanwhileIsDeleted(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), newPool("a"))
	h.expect()
	require.Len(t, h.CAPI.Created, 1)
	h.expect()
	require.Empty(t, h.CAPI.Changed, "the pool exists, even if the cache is stale")

	pools := v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools")
	require.NoError(t, h.Tracker().Delete(pools, controllertest.Namespace, "workers"))
	h.Remove(h.Informers.Nstance.NstanceMachinePools().Informer(), newPool("a"))
	h.Writes()
	h.expect()
	require.Len(t, h.CAPI.Changed, 1)
	assert.Contains(t, h.CAPI.Changed[0], "DELETE machinepools/workers")
	assert.Contains(t, h.CAPI.Changed[0], `"preconditions":{"uid":"uid-of-workers"}`)
	h.expect()
	assert.Len(t, h.CAPI.Changed, 1, "deletions")
}

// Cluster API sets replicas to 1 if a user omits them.
func TestSyncRaisesDefaultReplicas(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 4}), newPool("a", "b"))
	defaulted := withDefaultReplicas(machinePool("workers", ptr.To[int32](1)))
	defaulted.ResourceVersion = "7"
	require.NoError(t, h.Informers.MachinePools.GetIndexer().Add(defaulted))
	h.expect()
	want := []string{`PATCH machinepools/workers/scale {"metadata":{"resourceVersion":"7"},"spec":{"replicas":5}}`}
	if !slices.Equal(h.CAPI.Changed, want) {
		t.Errorf("did %q, want %q", h.CAPI.Changed, want)
	}
	h.scale(5)
	h.expect(groupA, groupB)
	for shard, size := range map[string]int32{"a": 1, "b": 4} {
		group := h.shardGroup(shard)
		require.NotNil(t, group.Spec.Imported, shard)
		assert.Equal(t, "5 over a,b", group.Spec.Imported.String(), shard)
		assert.Equal(t, size, group.Spec.Size, shard)
	}
	h.report("a", func(g *v1beta1.NstanceShardGroup) { ready(g) })
	h.report("b", func(g *v1beta1.NstanceShardGroup) { ready(g) })
	h.expect(poolStatus)

	// Explicit replicas are divided evenly.
	h.Show()
	h.scale(6)
	h.expect(poolStatus, groupA, groupB)
	for shard, size := range map[string]int32{"a": 3, "b": 3} {
		group := h.shardGroup(shard)
		assert.Nil(t, group.Spec.Imported, shard)
		assert.Equal(t, size, group.Spec.Size, shard)
	}
	h.Show()
	h.scale(5)
	h.expect(poolStatus, groupB)
}

// A shard group that exists is written as it was observed: a former leader, or a leader
// with a stale cache, gets a conflict.
func TestExistingShardGroupIsWrittenAsObserved(t *testing.T) {
	pool := newPool("a")
	group := newShardGroup(pool, "a", 1)
	group.UID, group.ResourceVersion = "uid-a", "7"
	d := planOf(observed(pool, 3, group))
	require.Len(t, d.apply, 1)
	applied := applyShardGroup(pool, d.apply[0])
	assert.Equal(t, ptr.To(types.UID("uid-a")), applied.UID)
	assert.Equal(t, ptr.To("7"), applied.ResourceVersion)
}

// Its finalizer is written when the pool is resumed, before anything exists on a shard.
func TestPausedPoolGetsNoFinalizer(t *testing.T) {
	pool := newPool("a")
	pool.Finalizers, pool.Annotations = nil, pausedAnnotation
	h := newHarness(t, withSizes(map[string]int32{"a": 0}), pool)
	h.scale(2)
	h.expect(poolStatus)
	assert.Empty(t, h.pool().Finalizers)
}

// The instances of a group that is being deleted are not part of a pool that gets its name.
func TestSyncDoesNotCountAGroupThatIsBeingDeleted(t *testing.T) {
	shards := withGroups(map[string]*shard.Group{"a": {Key: "workers", Size: 4, Deleting: true}, "b": {Key: "workers", Size: 3}})
	h := newHarness(t, shards, newPool("a", "b"))
	h.expect()
	require.Len(t, h.CAPI.Created, 1)
	assert.EqualValues(t, 3, h.CAPI.Created[0].Object["spec"].(map[string]any)["replicas"])
}

// A setting that is forgotten here would silently never reach the shard groups.
func TestEverySettingIsAppliedAndCompared(t *testing.T) {
	pool := &v1beta1.NstanceMachinePool{}
	pool.UID = "uid"
	settingstest.Fill(&pool.Spec.GroupSettings, func(id *v1beta1.Identifier, _ randfill.Continue) { *id = "private" })
	want := wantedSpec(pool, "a", 1)
	if !reflect.DeepEqual(want.GroupSettings, pool.Spec.GroupSettings) {
		t.Errorf("the shard group gets %+v, want %+v", want.GroupSettings, pool.Spec.GroupSettings)
	}

	applied := reflect.ValueOf(*controller.ApplyConfiguration[applyv1beta1.GroupSettingsApplyConfiguration](want.GroupSettings))
	settings := reflect.TypeFor[v1beta1.GroupSettings]()
	for i := range settings.NumField() {
		name := settings.Field(i).Name
		if field := applied.FieldByName(name); !field.IsValid() || field.IsZero() {
			t.Errorf("%s is not applied", name)
		}
	}
	if none := controller.ApplyConfiguration[applyv1beta1.GroupSettingsApplyConfiguration](v1beta1.GroupSettings{}); !reflect.ValueOf(none).Elem().IsZero() {
		t.Errorf("settings that are left out are applied as %+v", none)
	}

	// The candidates are not in GroupSettings: the operator divides their maxima.
	want.Candidates = []v1beta1.ShardCandidate{{Name: "base", MaxReplicas: ptr.To[int32](0)}, {}}
	settingstest.Fill(&want.Candidates[1])
	got := applyShardGroup(pool, wantedShardGroup{spec: want}).Spec.Candidates
	if len(got) != 2 || got[0].MaxReplicas == nil || *got[0].MaxReplicas != 0 {
		t.Fatalf("%+v is applied for the candidates %+v", got, want.Candidates)
	}
	group := newShardGroup(pool, "a", 1)
	group.Spec = want
	fields := reflect.TypeFor[v1beta1.ShardCandidate]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if field := reflect.ValueOf(got[1]).FieldByName(name); !field.IsValid() || field.IsZero() {
			t.Errorf("%s of a candidate is not applied", name)
		}
		other := want
		other.Candidates = slices.Clone(want.Candidates)
		reflect.ValueOf(&other.Candidates[1]).Elem().Field(i).SetZero()
		if !sameShardGroup(pool, group, wantedShardGroup{spec: want}) || sameShardGroup(pool, group, wantedShardGroup{spec: other}) {
			t.Errorf("%s of a candidate is not compared", name)
		}
	}
}
