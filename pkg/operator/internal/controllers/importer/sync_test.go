// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

const create = "create nstancemachinepools main"

func TestSyncCreatesThePoolOnce(t *testing.T) {
	h := newHarness(t, map[string]*shardtest.Shard{"us-west-2b": up(static(2)), "us-west-2c": up(), "us-west-2a": up(static(3))})
	writes, _, err := h.SyncStale()
	if err != nil || !slices.Equal(writes, []string{create}) {
		t.Fatalf("wrote %q, error %v", writes, err)
	}
	pool := h.pool("main")
	if pool.Spec.Group != "main" || !slices.Equal(pool.Spec.Shards, []v1beta1.Identifier{"us-west-2a", "us-west-2b"}) || pool.Spec.Template != "" {
		t.Errorf("made %+v", pool.Spec)
	}
	if !slices.Equal(pool.Finalizers, []string{v1beta1.FinalizerMachinePool}) {
		t.Errorf("made with the finalizers %q", pool.Finalizers)
	}

	writes, requeue, err := h.SyncStale()
	if err != nil || len(writes) > 0 || requeue != controller.StaleRetry {
		t.Errorf("before the cache shows it: wrote %q, requeue %s, error %v", writes, requeue, err)
	}
	h.show(shownVersion)
	h.expect()
	if got, want := h.Events(), []string{`Normal Imported group "main" was imported: 5 instances on 2 shards`}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	h.ExpectSeries("nstance_operator_imports_total 1")
}

func TestSyncCreatesAsTheOperator(t *testing.T) {
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))})
	var manager string
	h.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		manager = action.(clienttesting.CreateActionImpl).CreateOptions.FieldManager
		return false, nil, nil
	})
	h.expect(create)
	if manager != controllers.FieldManager {
		t.Errorf("created as %q", manager)
	}
}

func TestSyncWaitsForAllShards(t *testing.T) {
	shards := map[string]*shardtest.Shard{"a": up(static(3)), "b": unknown(false, false)}
	h := newHarness(t, shards)
	for _, state := range []*shardtest.Shard{
		unknown(false, false),
		unknown(false, true),
		unknown(true, false),
		unknown(true, false, static(2)),
		unknown(false, true, static(2)),
	} {
		*shards["b"] = *state
		h.expect()
	}
	*shards["b"] = *up(static(2))
	h.expect(create)
	if got := h.pool("main").Spec.Shards; !slices.Equal(got, []v1beta1.Identifier{"a", "b"}) {
		t.Errorf("made of the shards %s", got)
	}
}

func TestSyncIgnoresAPoolThatAnotherClientCreated(t *testing.T) {
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))})
	h.rejection = apierrors.NewAlreadyExists(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools").GroupResource(), "main")
	h.expect(create)
}

func TestSyncReturnsTheErrorOfACreation(t *testing.T) {
	refusal := errors.New("refused")
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))})
	h.rejection = refusal
	if _, _, err := h.SyncStale(); !errors.Is(err, refusal) || !strings.Contains(err.Error(), "create pool default/main") {
		t.Errorf("got error %v", err)
	}
	h.rejection = nil
	h.expect(create)
}

func TestSyncLeavesPoolsAlone(t *testing.T) {
	for name, objects := range map[string][]runtime.Object{
		"the group's pool of another name": {newPool("other", "main", "a")},
		"a pool that is being deleted":     {controllertest.Deleting(newPool("main", "main", "a"))},
		"what a former pool has left":      {controllertest.NewShardGroup(newPool("main", "main", "a"), "a")},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))}, objects...)
			h.expect()
			if got := h.Events(); got != nil {
				t.Errorf("recorded %q", got)
			}
		})
	}
}

func TestSyncWarns(t *testing.T) {
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1)), "b": up(static(1))}, newPool("other", "main", "a"))
	h.expect()
	if got, want := h.Events(), []string{`Warning ShardNotListed group "main" is also on shards that spec.shards does not name: b`}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}

	h = newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))}, newPool("main", "workers", "a"))
	h.expect()
	if got, want := h.Events(), []string{`Warning NameTaken group "main" on the shards gets no pool, because the pool of that name has group "workers"`}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestSyncWaitsForMachinePoolAndCluster(t *testing.T) {
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(static(1))})
	elsewhere := controllertest.Deleting(controllertest.NewMachinePool("elsewhere", "main"))
	elsewhere.Spec.Template.Spec.InfrastructureRef.Kind = "DockerMachinePool"
	h.Put(h.Informers.MachinePools, elsewhere)
	h.Put(h.Informers.MachinePools, controllertest.Deleting(controllertest.NewMachinePool("another", "workers")))
	h.Put(h.Informers.Clusters, controllertest.PausedCluster(anotherCluster()))

	// A MachinePool takes along the pool that it refers to, also one of another name.
	machinePool := controllertest.Deleting(controllertest.NewMachinePool("other", "main"))
	h.Put(h.Informers.MachinePools, machinePool)
	h.expect()
	require.NoError(t, h.Informers.MachinePools.GetIndexer().Delete(machinePool))
	h.Put(h.Informers.Clusters, controllertest.PausedCluster(controllertest.NewCluster()))
	h.expect()
	h.Put(h.Informers.Clusters, controllertest.Deleting(controllertest.NewCluster()))
	h.expect()
	h.Put(h.Informers.Clusters, controllertest.NewCluster())
	h.Put(h.Informers.MachinePools, controllertest.NewMachinePool("other", "main"))
	h.expect(create)
}

func TestSyncIgnoresWhatNoPoolCanBeNamedForAndLogsItOnce(t *testing.T) {
	odd := shard.Group{Key: "No--Key"}
	h := newHarness(t, map[string]*shardtest.Shard{"a": up(odd)})
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx := klog.NewContext(t.Context(), logger)
	for range 3 {
		if requeue, err := h.controller.sync(ctx, cache.NewObjectName(namespace, odd.Key)); err != nil || requeue != 0 {
			t.Errorf("requeue %s, error %v", requeue, err)
		}
	}
	if writes := h.Writes(); len(writes) > 0 {
		t.Errorf("wrote %q", writes)
	}
	if log := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); strings.Count(log, "Ignored") != 1 {
		t.Errorf("logged\n%s", log)
	}
}
