// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

func TestWhatWakesWhichMachines(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		node := newNode("n", "aws:///zone/provider-i-1")
		change(node)
		return node
	}
	same := func(*corev1.Node) {}
	troubled := func(message, version string) *v1beta1.NstanceMachine {
		machine := newMachine("new")
		machine.ResourceVersion = version
		setCondition(machine, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonProvisioning, message)
		return machine
	}
	cluster := func(change func(*clusterv1.Cluster)) *clusterv1.Cluster {
		cluster := newCluster()
		change(cluster)
		return cluster
	}
	// There are: one that has no shard, one that is ordered from shard a, one that
	// runs on shard a, one of another group on shard b, and one of a pool on shard a.
	newOne, ordered, runs, other, member := newMachine("new"), claiming(newMachine("ordered")), running(newMachine("runs"), "i-1"), having(newMachine("other"), "i-1"), newMember("member")
	other.Spec.GroupRef.Name, other.Status.Shard = "others", "b"
	all := []string{"member at 0s", "new at 0s", "ordered at 0s", "other at 0s", "runs at 0s"}

	for name, test := range map[string]struct {
		change func(*harness)
		want   []string
	}{
		"a machine": {func(h *harness) { h.controller.machineChanged(nil, newOne) }, []string{"new at 0s"}},
		"its own status, which the next step comes from": {func(h *harness) { h.controller.machineChanged(newOne, newOne) }, []string{"new at 0s"}},
		"a machine that went":                            {func(h *harness) { h.controller.machineChanged(newOne, nil) }, []string{"new at 0s"}},
		"its own status, when it puts the same trouble in other words": {func(h *harness) {
			h.controller.machineChanged(troubled("request 1 failed", "1"), troubled("request 2 failed", "2"))
		}, nil},
		"its own status, when the trouble is another": {func(h *harness) {
			after := troubled("request 2 failed", "2")
			setCondition(after, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonInstanceRefused, "")
			h.controller.machineChanged(troubled("request 1 failed", "1"), after)
		}, []string{"new at 0s"}},
		"its Machine":           {func(h *harness) { h.controller.ownerChanged(nil, newOwner("new")) }, []string{"new at 0s"}},
		"its Machine that went": {func(h *harness) { h.controller.ownerChanged(newOwner("new"), nil) }, []string{"new at 0s"}},
		"a Machine of another provider": {func(h *harness) {
			owner := newOwner("new")
			owner.Spec.InfrastructureRef.Kind = "DockerMachine"
			h.controller.ownerChanged(nil, owner)
		}, nil},
		"a shard that came: its own, and those that look for one": {func(h *harness) { h.controller.ShardChanged("a") },
			[]string{"member at 0s", "new at 0s", "ordered at 0s", "runs at 0s"}},
		"a shard that went, unless it is back soon": {func(h *harness) {
			h.shards.byID["b"].reachable = false
			h.controller.ShardChanged("b")
		}, []string{"new at 5s", "other at 5s"}},
		"a group: those that have no instance, with whatever follows": {func(h *harness) {
			for range 10 {
				h.controller.GroupChanged("a", "workers")
			}
		}, []string{"new at 1s", "ordered at 1s"}},
		"a group that lists a member of a pool": {func(h *harness) {
			h.shards.list(shard.Instance{ID: "member", State: shard.InstancePending})
			h.controller.GroupChanged("a", "workers")
		}, []string{"member at 1s", "new at 1s", "ordered at 1s"}},
		"a group that does not list it any more": {func(h *harness) {
			h.shards.list()
			h.controller.GroupChanged("a", "workers")
		}, []string{"member at 1s", "new at 1s", "ordered at 1s"}},
		"a group on another shard": {func(h *harness) {
			h.shards.list()
			h.controller.GroupChanged("b", "workers")
		}, []string{"new at 1s", "ordered at 1s"}},
		"an instance of a pool": {func(h *harness) { h.controller.InstanceChanged("a", "member") }, []string{"member at 0s"}},
		"an instance":           {func(h *harness) { h.controller.InstanceChanged("a", "i-1") }, []string{"runs at 0s"}},
		"an instance of nobody": {func(h *harness) { h.controller.InstanceChanged("a", "i-2") }, nil},
		"a Node":                {func(h *harness) { h.controller.nodeChanged(nil, node(same)) }, []string{"runs at 0s"}},
		"a Node that went":      {func(h *harness) { h.controller.nodeChanged(node(same), nil) }, []string{"runs at 0s"}},
		"a Node that gets its id": {func(h *harness) {
			h.controller.nodeChanged(node(func(n *corev1.Node) { n.Spec.ProviderID = "" }), node(same))
		}, []string{"runs at 0s"}},
		"a Node with other addresses": {func(h *harness) {
			h.controller.nodeChanged(node(same), node(func(n *corev1.Node) { n.ResourceVersion, n.Status.Addresses = "2", nil }))
		}, []string{"runs at 0s"}},
		"a heartbeat of a Node": {func(h *harness) {
			h.controller.nodeChanged(node(same), node(func(n *corev1.Node) { n.ResourceVersion = "2" }))
		}, nil},
		"the Cluster that came": {func(h *harness) { h.controller.clusterChanged(nil, newCluster()) }, all},
		"the Cluster that is paused": {func(h *harness) {
			h.controller.clusterChanged(newCluster(), cluster(func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) }))
		}, all},
		"the Cluster that is provisioned": {func(h *harness) {
			h.controller.clusterChanged(cluster(func(c *clusterv1.Cluster) { c.Status = clusterv1.ClusterStatus{} }), newCluster())
		}, all},
		"the Cluster otherwise": {func(h *harness) {
			h.controller.clusterChanged(newCluster(), cluster(func(c *clusterv1.Cluster) { c.ResourceVersion = "2" }))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var machines []*v1beta1.NstanceMachine
			for _, machine := range []*v1beta1.NstanceMachine{newOne, ordered, runs, other, member} {
				machines = append(machines, machine.DeepCopy())
			}
			h := newHarness(t, newShards("a", "b"), machines...)
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var woken []string
				h.controller.queue = controller.NewQueue("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
					woken = append(woken, fmt.Sprintf("%s at %s", key.Name, time.Since(start)))
					return 0, nil
				})
				test.change(h)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				h.controller.queue.Run(ctx, 1)
				slices.Sort(woken)
				if !slices.Equal(woken, test.want) {
					t.Errorf("woke %q, want %q", woken, test.want)
				}
			})
		})
	}
}

func TestAGroupWakesOnlyTheMembersThatItHasNewsOf(t *testing.T) {
	const members = 500
	var machines []*v1beta1.NstanceMachine
	var instances []shard.Instance
	for i := range members {
		name := fmt.Sprintf("i-%03d", i)
		machines = append(machines, runningMember(name))
		instances = append(instances, shard.Instance{ID: name, State: shard.InstanceRunning, ProviderID: "provider-" + name})
	}
	h := newHarness(t, newShards("a"), machines...)
	synctest.Test(t, func(t *testing.T) {
		var woken []string
		h.controller.queue = controller.NewQueue("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			woken = append(woken, key.Name)
			return 0, nil
		})
		h.shards.list(instances...)
		h.controller.GroupChanged("a", "workers")
		instances[100].State = shard.InstanceFailed
		h.shards.list(slices.Delete(instances, 200, 201)...)
		h.controller.GroupChanged("a", "workers")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		h.controller.queue.Run(ctx, 1)
		slices.Sort(woken)
		if want := []string{"i-100", "i-200"}; !slices.Equal(woken, want) {
			t.Errorf("woke %q, want %q", woken, want)
		}
	})
}
