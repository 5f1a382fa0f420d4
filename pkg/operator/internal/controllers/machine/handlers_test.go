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
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

func TestWhichNstanceMachinesAChangeEnqueues(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		node := newNode("n", "aws:///zone/provider-i-1")
		change(node)
		return node
	}
	same := func(*corev1.Node) {}
	withProblem := func(message, version string) *v1beta1.NstanceMachine {
		nstanceMachine := newNstanceMachine("new")
		nstanceMachine.ResourceVersion = version
		setCondition(nstanceMachine, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonProvisioning, message)
		return nstanceMachine
	}
	cluster := func(change func(*clusterv1.Cluster)) *clusterv1.Cluster {
		cluster := newCluster()
		change(cluster)
		return cluster
	}
	// The NstanceMachines are: without a shard, requested from shard a, running on shard a, of
	// another group on shard b, and a pool member on shard a.
	newOne, requested, runs, other, pooled := newNstanceMachine("new"), withShard(newNstanceMachine("requested")), running(newNstanceMachine("runs"), "i-1"), withInstance(newNstanceMachine("other"), "i-1"), newPoolMember("member")
	other.Spec.GroupRef.Name, other.Status.Shard = "others", "b"
	all := []string{"member at 0s", "new at 0s", "other at 0s", "requested at 0s", "runs at 0s"}

	for name, test := range map[string]struct {
		change func(*harness)
		want   []string
	}{
		"an NstanceMachine":                            {func(h *harness) { h.controller.nstanceMachineChanged(nil, newOne) }, []string{"new at 0s"}},
		"its own status, which triggers the next step": {func(h *harness) { h.controller.nstanceMachineChanged(newOne, newOne) }, []string{"new at 0s"}},
		"an NstanceMachine that was deleted":           {func(h *harness) { h.controller.nstanceMachineChanged(newOne, nil) }, []string{"new at 0s"}},
		"its own status, the same problem with another message": {func(h *harness) {
			h.controller.nstanceMachineChanged(withProblem("request 1 failed", "1"), withProblem("request 2 failed", "2"))
		}, nil},
		"its own status, another problem": {func(h *harness) {
			after := withProblem("request 2 failed", "2")
			setCondition(after, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonInstanceRefused, "")
			h.controller.nstanceMachineChanged(withProblem("request 1 failed", "1"), after)
		}, []string{"new at 0s"}},
		"its Machine":                  {func(h *harness) { h.controller.machineChanged(nil, newMachine("new")) }, []string{"new at 0s"}},
		"its Machine that was deleted": {func(h *harness) { h.controller.machineChanged(newMachine("new"), nil) }, []string{"new at 0s"}},
		"a Machine of another provider": {func(h *harness) {
			machine := newMachine("new")
			machine.Spec.InfrastructureRef.Kind = "DockerMachine"
			h.controller.machineChanged(nil, machine)
		}, nil},
		"a shard that is connected: its own, and those without a shard": {func(h *harness) { h.Fake.NotifyShard("a") },
			[]string{"member at 0s", "new at 0s", "requested at 0s", "runs at 0s"}},
		"a shard that is disconnected: after a grace period": {func(h *harness) {
			h.Fake.ByID["b"].Reachable = false
			h.Fake.NotifyShard("b")
		}, []string{"new at 5s", "other at 5s"}},
		"several changes of a group: once for each without an instance": {func(h *harness) {
			for range 10 {
				h.Fake.NotifyGroup("a", "workers")
			}
		}, []string{"new at 1s", "requested at 1s"}},
		"a group that lists a pool member": {func(h *harness) {
			h.list(shard.Instance{ID: "member", State: shard.InstancePending})
			h.Fake.NotifyGroup("a", "workers")
		}, []string{"member at 1s", "new at 1s", "requested at 1s"}},
		"a group that does not list the pool member": {func(h *harness) {
			h.list()
			h.Fake.NotifyGroup("a", "workers")
		}, []string{"member at 1s", "new at 1s", "requested at 1s"}},
		"a group on another shard": {func(h *harness) {
			h.list()
			h.Fake.NotifyGroup("b", "workers")
		}, []string{"new at 1s", "requested at 1s"}},
		"an instance of a pool":    {func(h *harness) { h.Fake.NotifyInstance("a", "member") }, []string{"member at 0s"}},
		"an instance":              {func(h *harness) { h.Fake.NotifyInstance("a", "i-1") }, []string{"runs at 0s"}},
		"the drain of an instance": {func(h *harness) { h.drains.handlers[0]("a", "workers", "i-1") }, []string{"runs at 0s"}},
		"an unknown instance":      {func(h *harness) { h.Fake.NotifyInstance("a", "i-2") }, nil},
		"a Node":                   {func(h *harness) { h.controller.nodeChanged(nil, node(same)) }, []string{"runs at 0s"}},
		"a Node that was deleted":  {func(h *harness) { h.controller.nodeChanged(node(same), nil) }, []string{"runs at 0s"}},
		"a Node that gets its provider id": {func(h *harness) {
			h.controller.nodeChanged(node(func(n *corev1.Node) { n.Spec.ProviderID = "" }), node(same))
		}, []string{"runs at 0s"}},
		"a Node with other addresses": {func(h *harness) {
			h.controller.nodeChanged(node(same), node(func(n *corev1.Node) { n.ResourceVersion, n.Status.Addresses = "2", nil }))
		}, []string{"runs at 0s"}},
		"a heartbeat of a Node": {func(h *harness) {
			h.controller.nodeChanged(node(same), node(func(n *corev1.Node) { n.ResourceVersion = "2" }))
		}, nil},
		"a new Cluster": {func(h *harness) { h.controller.clusterChanged(nil, newCluster()) }, all},
		"a Cluster that is paused": {func(h *harness) {
			h.controller.clusterChanged(newCluster(), cluster(func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) }))
		}, all},
		"a Cluster that is provisioned": {func(h *harness) {
			h.controller.clusterChanged(cluster(func(c *clusterv1.Cluster) { c.Status = clusterv1.ClusterStatus{} }), newCluster())
		}, all},
		"any other change of the Cluster": {func(h *harness) {
			h.controller.clusterChanged(newCluster(), cluster(func(c *clusterv1.Cluster) { c.ResourceVersion = "2" }))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var machines []*v1beta1.NstanceMachine
			for _, nstanceMachine := range []*v1beta1.NstanceMachine{newOne, requested, runs, other, pooled} {
				machines = append(machines, nstanceMachine.DeepCopy())
			}
			h := newHarness(t, newShards("a", "b"), machines...)
			enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { test.change(h) })
			if !slices.Equal(enqueued, test.want) {
				t.Errorf("enqueued %q, want %q", enqueued, test.want)
			}
		})
	}
}

func TestAGroupEnqueuesOnlyPoolMembersThatHaveChanged(t *testing.T) {
	const size = 500
	var machines []*v1beta1.NstanceMachine
	var instances []shard.Instance
	for i := range size {
		name := fmt.Sprintf("i-%03d", i)
		machines = append(machines, runningPoolMember(name))
		instances = append(instances, shard.Instance{ID: name, State: shard.InstanceRunning, ProviderID: "provider-" + name})
	}
	h := newHarness(t, newShards("a"), machines...)
	synctest.Test(t, func(t *testing.T) {
		var enqueued []string
		h.controller.queue = controller.NewQueue("test", func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			enqueued = append(enqueued, key.Name)
			return 0, nil
		})
		h.list(instances...)
		h.Fake.NotifyGroup("a", "workers")
		instances[100].State = shard.InstanceFailed
		h.list(slices.Delete(instances, 200, 201)...)
		h.Fake.NotifyGroup("a", "workers")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		h.controller.queue.Run(ctx, 1)
		slices.Sort(enqueued)
		if want := []string{"i-100", "i-200"}; !slices.Equal(enqueued, want) {
			t.Errorf("enqueued %q, want %q", enqueued, want)
		}
	})
}
