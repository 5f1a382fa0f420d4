// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

// wakes returns which pools something wakes, and when, sorted.
func (h *harness) wakes(t *testing.T, something func()) []string {
	t.Helper()
	var woken []string
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		h.controller.queue = controller.NewQueue("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			woken = append(woken, fmt.Sprintf("%s after %s", key.Name, time.Since(start)))
			return 0, nil
		})
		something()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		h.controller.queue.Run(ctx, 1)
	})
	slices.Sort(woken)
	return woken
}

// newer is another state of object.
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

func TestWhatWakesThePool(t *testing.T) {
	pool, group, member, machine, machinePool := newPool("a", "b"), newShardGroup(newPool("a"), "a"), stored("i-1"), newMachine("i-1"), newMachinePool()
	single := newMachine("on-demand")
	single.Labels = nil
	now, later := []string{"workers after 0s"}, []string{"workers after 1s"}
	tests := map[string]struct {
		do   func(*Controller)
		want []string
	}{
		"a Machine becomes unhealthy": {func(c *Controller) {
			c.machineChanged(machine, newer(machine, func(m *clusterv1.Machine) { marked(m, metav1.ConditionFalse, metav1.ConditionFalse) }))
		}, later},
		"the pool comes": {func(c *Controller) { c.poolChanged(nil, pool) }, now},
		"is seen again":  {func(c *Controller) { c.poolChanged(pool, pool) }, now},
		"goes": {func(c *Controller) {
			c.poolChanged(pool, newer(pool, func(p *v1beta1.NstanceMachinePool) { deleted(p) }))
		}, now},
		"is paused": {func(c *Controller) {
			c.poolChanged(pool, newer(pool, func(p *v1beta1.NstanceMachinePool) { paused(p) }))
		}, now},
		"has Machines now": {func(c *Controller) { c.poolChanged(newer(pool, withoutMachines), newer(pool)) }, now},
		"has another shard": {func(c *Controller) {
			c.poolChanged(pool, newer(pool, func(p *v1beta1.NstanceMachinePool) { p.Spec.Shards = p.Spec.Shards[:1] }))
		}, now},
		"is gone": {func(c *Controller) { c.poolChanged(pool, nil) }, nil},
		"has other instances": {func(c *Controller) {
			c.poolChanged(pool, newer(pool, func(p *v1beta1.NstanceMachinePool) {
				p.Spec.ProviderIDList, p.Generation, p.Status.Replicas = []string{"x"}, 7, ptr.To[int32](1)
			}))
		}, nil},

		"a shard group comes": {func(c *Controller) { c.shardGroupChanged(nil, group) }, now},
		"has others chosen": {func(c *Controller) {
			c.shardGroupChanged(group, newer(group, func(g *v1beta1.NstanceShardGroup) { g.Spec.RemoveFirst = []string{"i-1"} }))
		}, now},
		"has another size or status": {func(c *Controller) {
			c.shardGroupChanged(group, newer(group, func(g *v1beta1.NstanceShardGroup) { g.Spec.Size, g.Status.Replicas = 7, ptr.To[int32](7) }))
		}, nil},
		"a shard group is gone": {func(c *Controller) { c.shardGroupChanged(group, nil) }, nil},
		"one of no pool comes": {func(c *Controller) {
			c.shardGroupChanged(nil, newer(group, func(g *v1beta1.NstanceShardGroup) { g.OwnerReferences = nil }))
		}, nil},

		"a member comes":   {func(c *Controller) { c.memberChanged(nil, member) }, later},
		"a member is gone": {func(c *Controller) { c.memberChanged(member, nil) }, later},
		"a member has a new status": {func(c *Controller) {
			c.memberChanged(member, newer(member, func(m *v1beta1.NstanceMachine) { m.Status.Ready = ptr.To(true) }))
		}, nil},
		"a member goes": {func(c *Controller) {
			c.memberChanged(member, newer(member, func(m *v1beta1.NstanceMachine) { deleted(m) }))
		}, nil},
		"a stranger comes and goes": {func(c *Controller) { c.memberChanged(nil, stranger()); c.memberChanged(stranger(), nil) }, nil},

		"a Machine comes":   {func(c *Controller) { c.machineChanged(nil, machine) }, later},
		"a Machine is gone": {func(c *Controller) { c.machineChanged(machine, nil) }, later},
		"a Machine has a new status": {func(c *Controller) {
			c.machineChanged(machine, newer(machine, func(m *clusterv1.Machine) { m.Status.Phase = "Running" }))
		}, nil},
		"a Machine goes": {func(c *Controller) {
			c.machineChanged(machine, newer(machine, func(m *clusterv1.Machine) { deleted(m) }))
		}, nil},
		"a Machine is paused no more": {func(c *Controller) {
			c.machineChanged(paused(newMachine("i-1")), newer(machine))
		}, later},
		"another Machine comes, goes": {func(c *Controller) { c.machineChanged(nil, single); c.machineChanged(single, nil) }, nil},

		"the MachinePool comes": {func(c *Controller) { c.machinePoolChanged(nil, machinePool) }, now},
		"the MachinePool goes": {func(c *Controller) {
			c.machinePoolChanged(machinePool, newer(machinePool, func(m *clusterv1.MachinePool) { deleted(m) }))
		}, now},
		"the MachinePool is gone": {func(c *Controller) { c.machinePoolChanged(machinePool, nil) }, now},
		"it is paused": {func(c *Controller) {
			c.machinePoolChanged(machinePool, newer(machinePool, func(m *clusterv1.MachinePool) { paused(m) }))
		}, now},
		"it refers to the pool": {func(c *Controller) { c.machinePoolChanged(newer(machinePool, elsewhere), newer(machinePool)) }, []string{"others after 0s", "workers after 0s"}},
		"it is scaled": {func(c *Controller) {
			c.machinePoolChanged(machinePool, newer(machinePool, func(m *clusterv1.MachinePool) { m.Spec.Replicas = ptr.To[int32](7) }))
		}, nil},
		"one of another pool goes": {func(c *Controller) { c.machinePoolChanged(newer(machinePool, elsewhere), nil) }, []string{"others after 0s"}},

		"the Cluster is paused":        {func(c *Controller) { c.clusterChanged(newCluster(), pausedCluster()) }, now},
		"the Cluster goes on":          {func(c *Controller) { c.clusterChanged(pausedCluster(), newCluster()) }, now},
		"the Cluster has a new status": {func(c *Controller) { c.clusterChanged(newCluster(), newer(newCluster())) }, nil},

		"news of a shard":         {func(c *Controller) { c.ShardChanged("b") }, later},
		"news of another shard":   {func(c *Controller) { c.ShardChanged("c") }, nil},
		"an instance that is new": {func(c *Controller) { c.GroupChanged("a", "workers") }, later},
		"news of another group":   {func(c *Controller) { c.GroupChanged("a", "others") }, nil},
		"one that ends":           {func(c *Controller) { c.GroupChanged("b", "workers") }, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, shards{"a": lists("i-1"), "b": as("i-2", shard.InstanceTerminating)}, newPool("a", "b"))
			if got := h.wakes(t, func() { test.do(h.controller) }); !slices.Equal(got, test.want) {
				t.Errorf("woke %q, want %q", got, test.want)
			}
		})
	}
}

func withoutMachines(pool *v1beta1.NstanceMachinePool) { pool.Status.InfrastructureMachineKind = "" }

func elsewhere(machinePool *clusterv1.MachinePool) {
	machinePool.Spec.Template.Spec.InfrastructureRef.Name = "others"
}

func pausedCluster() *clusterv1.Cluster {
	cluster := newCluster()
	cluster.Spec.Paused = ptr.To(true)
	return cluster
}

// What becomes of instances that have a member is not this controller's business,
// and of a pool without Machines nothing is.
func TestInstancesThatAreKnownWakeNobody(t *testing.T) {
	known := newHarness(t, shards{"a": lists("i-1")}, newPool("a"), stored("i-1"))
	without := newPool("a")
	without.Status.InfrastructureMachineKind = ""
	for name, h := range map[string]*harness{
		"with a member": known, "without Machines": newHarness(t, shards{"a": lists("i-1")}, without),
	} {
		if got := h.wakes(t, func() { h.controller.GroupChanged("a", "workers") }); len(got) > 0 {
			t.Errorf("%s: woke %q", name, got)
		}
	}
}

// A burst costs one sync, not one per object.
func TestABurstIsOneSync(t *testing.T) {
	groups := shards{"a": lists()}
	h := newHarness(t, groups, newPool("a"))
	got := h.wakes(t, func() {
		var ids []string
		for i := range 500 {
			ids = append(ids, fmt.Sprintf("i-%03d", i))
			groups["a"] = lists(ids...)
			h.controller.GroupChanged("a", "workers")
			h.controller.memberChanged(nil, stored(ids[i]))
			h.controller.machineChanged(nil, newMachine(ids[i]))
		}
	})
	if want := []string{"workers after 1s"}; !slices.Equal(got, want) {
		t.Errorf("woke %q, want %q", got, want)
	}
}

// The MachinePool is gone, and with it the way from a Machine to its pool.
func TestAMachineWakesThePoolOfItsMember(t *testing.T) {
	h := newHarness(t, shards{}, newPool("a"), stored("i-1"))
	h.noError(h.machinePoolCache.GetIndexer().Replace(nil, "1"))
	if got := h.wakes(t, func() { h.controller.machineChanged(newMachine("i-1"), nil) }); len(got) != 1 {
		t.Errorf("woke %q", got)
	}
}

// The label of a Machine names its MachinePool, whatever that is called.
func TestAMachineWakesThePoolOfItsMachinePool(t *testing.T) {
	h := newHarness(t, shards{}, newPool("a"))
	machinePool, machine := newMachinePool(), newMachine("i-1")
	machinePool.Name = strings.Repeat("long-", 20) + "name"
	machine.Labels[clusterv1.MachinePoolNameLabel] = capi.LabelValue(machinePool.Name)
	h.noError(h.machinePoolCache.GetIndexer().Replace([]any{machinePool}, "1"))
	if got := h.wakes(t, func() { h.controller.machineChanged(nil, machine) }); len(got) != 1 {
		t.Errorf("woke %q", got)
	}
}

func TestWhatIsRememberedOfAPoolGoesWithIt(t *testing.T) {
	h := newHarness(t, shards{"a": lists("i-1")}, newPool("a"), stored("i-1"))
	if got := h.controller.memories.get(poolUID).had; !maps.Equal(got, map[string]string{"i-1": "a"}) {
		t.Errorf("remembered %v", got)
	}
	h.controller.poolChanged(newPool("a"), nil)
	if len(h.controller.memories.of) > 0 {
		t.Errorf("remembered %v", h.controller.memories.of)
	}
}
