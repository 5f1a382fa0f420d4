// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// newer returns a copy of object with another resource version.
func newer[T interface {
	metav1.Object
	DeepCopy() T
}](object T, changes ...func(T)) T {
	object = object.DeepCopy()
	object.SetResourceVersion(object.GetResourceVersion() + "1")
	for _, change := range changes {
		change(object)
	}
	return object
}

func TestChangesEnqueueThePool(t *testing.T) {
	pool, group, nstanceMachine, machine, machinePool := newPool("a", "b"), newShardGroup(newPool("a"), "a"), stored("i-1"), newMachine("i-1"), newMachinePool()
	single := newMachine("on-demand")
	single.Labels = nil
	now, later := []string{"workers at 0s"}, []string{"workers at 1s"}
	tests := map[string]struct {
		do   func(*Controller)
		want []string
	}{
		"a Machine becomes unhealthy": {func(c *Controller) {
			c.machineChanged(machine, newer(machine, func(m *clusterv1.Machine) { marked(m, metav1.ConditionFalse, metav1.ConditionFalse) }))
		}, later},
		"the pool is created":  {func(c *Controller) { c.poolChanged(nil, pool) }, now},
		"the pool is resynced": {func(c *Controller) { c.poolChanged(pool, pool) }, now},
		"the pool is being deleted": {func(c *Controller) {
			c.poolChanged(pool, newer(pool, func(p *v1beta1.NstanceMachinePool) { controllertest.Deleting(p) }))
		}, now},
		"the pool is paused": {func(c *Controller) {
			c.poolChanged(pool, newer(pool, func(p *v1beta1.NstanceMachinePool) { controllertest.Paused(p) }))
		}, now},
		"the pool has Machines now": {func(c *Controller) { c.poolChanged(newer(pool, withoutMachines), newer(pool)) }, now},
		"the pool has another shard": {func(c *Controller) {
			c.poolChanged(pool, newer(pool, func(p *v1beta1.NstanceMachinePool) { p.Spec.Shards = p.Spec.Shards[:1] }))
		}, now},
		"the pool is deleted": {func(c *Controller) { c.poolChanged(pool, nil) }, nil},
		"the pool has other instances": {func(c *Controller) {
			c.poolChanged(pool, newer(pool, func(p *v1beta1.NstanceMachinePool) {
				p.Spec.ProviderIDList, p.Generation, p.Status.Replicas = []string{"x"}, 7, ptr.To[int32](1)
			}))
		}, nil},

		"a shard group is created": {func(c *Controller) { c.shardGroupChanged(nil, group) }, now},
		"a shard group selects other instances": {func(c *Controller) {
			c.shardGroupChanged(group, newer(group, func(g *v1beta1.NstanceShardGroup) { g.Spec.RemoveFirst = []string{"i-1"} }))
		}, now},
		"a shard group has another size or status": {func(c *Controller) {
			c.shardGroupChanged(group, newer(group, func(g *v1beta1.NstanceShardGroup) { g.Spec.Size, g.Status.Replicas = 7, ptr.To[int32](7) }))
		}, nil},
		"a shard group is deleted": {func(c *Controller) { c.shardGroupChanged(group, nil) }, nil},
		"a shard group without a pool is created": {func(c *Controller) {
			c.shardGroupChanged(nil, newer(group, func(g *v1beta1.NstanceShardGroup) { g.OwnerReferences = nil }))
		}, nil},

		"an NstanceMachine is created": {func(c *Controller) { c.nstanceMachineChanged(nil, nstanceMachine) }, later},
		"an NstanceMachine is deleted": {func(c *Controller) { c.nstanceMachineChanged(nstanceMachine, nil) }, later},
		"an NstanceMachine has a new status": {func(c *Controller) {
			c.nstanceMachineChanged(nstanceMachine, newer(nstanceMachine, func(m *v1beta1.NstanceMachine) { m.Status.Ready = ptr.To(true) }))
		}, nil},
		"an NstanceMachine is being deleted": {func(c *Controller) {
			c.nstanceMachineChanged(nstanceMachine, newer(nstanceMachine, func(m *v1beta1.NstanceMachine) { controllertest.Deleting(m) }))
		}, nil},
		"a foreign NstanceMachine is created and deleted": {func(c *Controller) { c.nstanceMachineChanged(nil, foreign()); c.nstanceMachineChanged(foreign(), nil) }, nil},

		"a Machine is created": {func(c *Controller) { c.machineChanged(nil, machine) }, later},
		"a Machine is deleted": {func(c *Controller) { c.machineChanged(machine, nil) }, later},
		"a Machine has a new status": {func(c *Controller) {
			c.machineChanged(machine, newer(machine, func(m *clusterv1.Machine) { m.Status.Phase = "Running" }))
		}, nil},
		"a Machine is being deleted": {func(c *Controller) {
			c.machineChanged(machine, newer(machine, func(m *clusterv1.Machine) { controllertest.Deleting(m) }))
		}, nil},
		"a Machine is unpaused": {func(c *Controller) {
			c.machineChanged(controllertest.Paused(newMachine("i-1")), newer(machine))
		}, later},
		"another Machine is created and deleted": {func(c *Controller) { c.machineChanged(nil, single); c.machineChanged(single, nil) }, nil},

		"the MachinePool is created": {func(c *Controller) { c.machinePoolChanged(nil, machinePool) }, now},
		"the MachinePool is being deleted": {func(c *Controller) {
			c.machinePoolChanged(machinePool, newer(machinePool, func(m *clusterv1.MachinePool) { controllertest.Deleting(m) }))
		}, now},
		"the MachinePool is deleted": {func(c *Controller) { c.machinePoolChanged(machinePool, nil) }, now},
		"the MachinePool is paused": {func(c *Controller) {
			c.machinePoolChanged(machinePool, newer(machinePool, func(m *clusterv1.MachinePool) { controllertest.Paused(m) }))
		}, now},
		"the MachinePool refers to the pool now": {func(c *Controller) { c.machinePoolChanged(newer(machinePool, elsewhere), newer(machinePool)) }, []string{"others at 0s", "workers at 0s"}},
		"the MachinePool is scaled": {func(c *Controller) {
			c.machinePoolChanged(machinePool, newer(machinePool, func(m *clusterv1.MachinePool) { m.Spec.Replicas = ptr.To[int32](7) }))
		}, nil},
		"a MachinePool of another pool is deleted": {func(c *Controller) { c.machinePoolChanged(newer(machinePool, elsewhere), nil) }, []string{"others at 0s"}},

		"the Cluster is paused": {func(c *Controller) {
			c.clusterChanged(controllertest.NewCluster(), controllertest.PausedCluster(controllertest.NewCluster()))
		}, now},
		"the Cluster is unpaused": {func(c *Controller) {
			c.clusterChanged(controllertest.PausedCluster(controllertest.NewCluster()), controllertest.NewCluster())
		}, now},
		"the Cluster has a new status": {func(c *Controller) { c.clusterChanged(controllertest.NewCluster(), newer(controllertest.NewCluster())) }, nil},

		"a shard changes":                 {func(c *Controller) { c.shardChanged("b") }, later},
		"another shard changes":           {func(c *Controller) { c.shardChanged("c") }, nil},
		"a new instance":                  {func(c *Controller) { c.groupChanged("a", "workers") }, later},
		"another group changes":           {func(c *Controller) { c.groupChanged("a", "others") }, nil},
		"an instance is being terminated": {func(c *Controller) { c.groupChanged("b", "workers") }, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, byShard{"a": running("i-1"), "b": inState("i-2", shard.InstanceTerminating)}, newPool("a", "b"))
			if got := controllertest.Enqueued(t, &h.controller.queue, func() { test.do(h.controller) }); !slices.Equal(got, test.want) {
				t.Errorf("enqueued %q, want %q", got, test.want)
			}
		})
	}
}

func withoutMachines(pool *v1beta1.NstanceMachinePool) { pool.Status.InfrastructureMachineKind = "" }

func elsewhere(machinePool *clusterv1.MachinePool) {
	machinePool.Spec.Template.Spec.InfrastructureRef.Name = "others"
}

// Instances that have an NstanceMachine are not relevant to this controller, and in a pool
// without Machines no instances are.
func TestKnownInstancesEnqueueNothing(t *testing.T) {
	known := newHarness(t, byShard{"a": running("i-1")}, newPool("a"), stored("i-1"))
	without := newPool("a")
	without.Status.InfrastructureMachineKind = ""
	for name, h := range map[string]*harness{
		"with an NstanceMachine": known, "without Machines": newHarness(t, byShard{"a": running("i-1")}, without),
	} {
		if got := controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.groupChanged("a", "workers") }); len(got) > 0 {
			t.Errorf("%s: enqueued %q", name, got)
		}
	}
}

// A burst of changes causes one sync, not one for each object.
func TestBurstIsOneSync(t *testing.T) {
	groups := byShard{"a": running()}
	h := newHarness(t, groups, newPool("a"))
	got := controllertest.Enqueued(t, &h.controller.queue, func() {
		var ids []string
		for i := range 500 {
			ids = append(ids, fmt.Sprintf("i-%03d", i))
			h.setGroup("a", running(ids...))
			h.controller.groupChanged("a", "workers")
			h.controller.nstanceMachineChanged(nil, stored(ids[i]))
			h.controller.machineChanged(nil, newMachine(ids[i]))
		}
	})
	if want := []string{"workers at 1s"}; !slices.Equal(got, want) {
		t.Errorf("enqueued %q, want %q", got, want)
	}
}

// Without the MachinePool, the pool of a Machine is found by its NstanceMachine.
func TestMachineEnqueuesThePoolOfItsNstanceMachine(t *testing.T) {
	h := newHarness(t, byShard{}, newPool("a"), stored("i-1"))
	require.NoError(h.T, h.Informers.MachinePools.GetIndexer().Replace(nil, "1"))
	if got := controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.machineChanged(newMachine("i-1"), nil) }); len(got) != 1 {
		t.Errorf("enqueued %q", got)
	}
}

// The label of a Machine names its MachinePool, even if the name is too long for a label.
func TestMachineEnqueuesThePoolOfItsMachinePool(t *testing.T) {
	h := newHarness(t, byShard{}, newPool("a"))
	machinePool, machine := newMachinePool(), newMachine("i-1")
	machinePool.Name = strings.Repeat("long-", 20) + "name"
	machine.Labels[clusterv1.MachinePoolNameLabel] = capi.LabelValue(machinePool.Name)
	require.NoError(h.T, h.Informers.MachinePools.GetIndexer().Replace([]any{machinePool}, "1"))
	if got := controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.machineChanged(nil, machine) }); len(got) != 1 {
		t.Errorf("enqueued %q", got)
	}
}

func TestSyncStateOfADeletedPoolIsDropped(t *testing.T) {
	h := newHarness(t, byShard{"a": running("i-1")}, newPool("a"), stored("i-1"))
	if got := h.controller.states.get(poolUID).shardOf; !maps.Equal(got, map[string]string{"i-1": "a"}) {
		t.Errorf("state has %v", got)
	}
	h.controller.poolChanged(newPool("a"), nil)
	if len(h.controller.states.byPool) > 0 {
		t.Errorf("state has %v", h.controller.states.byPool)
	}
}

// countingLister counts the lists of all pools.
type countingLister struct {
	nstancelisters.NstanceMachinePoolNamespaceLister
	lists int
}

func (l *countingLister) List(selector labels.Selector) ([]*v1beta1.NstanceMachinePool, error) {
	l.lists++
	return l.NstanceMachinePoolNamespaceLister.List(selector)
}

func TestAChangeOfAShardVisitsOnlyItsPools(t *testing.T) {
	h := newHarness(t, byShard{"a": running("i-1"), "b": running("i-2")}, newPool("a"))
	counted := &countingLister{NstanceMachinePoolNamespaceLister: h.controller.poolLister}
	h.controller.poolLister = counted
	for shard, want := range map[string][]string{"a": {"workers at 1s"}, "b": nil} {
		assert.Equal(t, want, controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.shardChanged(shard) }), "shard %s", shard)
	}
	assert.Zero(t, counted.lists, "lists of all pools")
}
