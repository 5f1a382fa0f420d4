// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// 500 Pods at once have 500 machines, and not one more. Of their instance type
// there is none, so that nothing but the machines is made: what 500 Nodes cost is
// Cluster API's affair and the API server's.
func TestManyPodsAtOnce(t *testing.T) {
	const namespace, pods = "many", 500
	// few is by how much a shard may have more than another one.
	const few = 5
	watchOperator(t)
	newNamespace(t, namespace)
	before := newCount(t)
	begin := time.Now()
	createPods(t, namespace, pods, func(pod *corev1.Pod) {
		pod.Annotations[v1beta1.AnnotationOnDemandInstanceType] = unavailable
	})
	t.Logf("%d Pods made in %s", pods, time.Since(begin).Round(time.Second/10))
	eventuallyEvery(t, 2*time.Second, 10*time.Minute, "all machines have an instance", func(ctx context.Context) error {
		return allOrdered(ctx, namespace, pods)
	})
	t.Logf("%d machines have an instance after %s", pods, time.Since(begin).Round(time.Second/10))
	if err := machineCount(t.Context(), namespace, pods); err != nil {
		t.Error(err)
	}

	ordered := before.oneEach(t, namespace)
	counts := slices.Collect(maps.Values(ordered))
	if slices.Max(counts)-slices.Min(counts) > few || len(counts) != len(shardIDs) {
		t.Errorf("instances on the shards: %v", ordered)
	}
	t.Logf("instances on the shards: %v", ordered)
}

// createPods makes Pods that ask for machines, several at the same time.
func createPods(t *testing.T, namespace string, count int, change ...func(*corev1.Pod)) {
	t.Helper()
	var creating errgroup.Group
	creating.SetLimit(20)
	for i := range count {
		creating.Go(func() error {
			pod := newPod(namespace, fmt.Sprintf("builder-%d", i))
			for _, change := range change {
				change(pod)
			}
			_, err := env.kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
}

// allOrdered succeeds when there are so many machines for the Pods of a namespace,
// and it is on record which instance each has.
func allOrdered(ctx context.Context, namespace string, count int) error {
	machines, err := machinesOf(ctx, namespace)
	if err != nil {
		return err
	}
	ordered := 0
	for _, m := range machines {
		if m.Status.InstanceID != "" {
			ordered++
		}
	}
	if ordered != count || len(machines) != count {
		return fmt.Errorf("%d of %d machines have an instance, want %d", ordered, len(machines), count)
	}
	return nil
}

// allRun succeeds when every Pod of a namespace runs on the Node that was made
// for it, and every Machine of them is Running.
func allRun(ctx context.Context, namespace string, count int) error {
	machines, err := env.capi.Machines(nstance.Namespace).List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelPodUID})
	if err != nil {
		return err
	}
	nodes := map[string]string{}
	for _, m := range machines.Items {
		if m.Status.Phase == string(clusterv1.MachinePhaseRunning) {
			nodes[m.Labels[v1beta1.LabelPodUID]] = m.Status.NodeRef.Name
		}
	}
	pods, err := env.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	running := 0
	for _, pod := range pods.Items {
		node, ready := nodes[string(pod.UID)]
		if ready && pod.Status.Phase == corev1.PodRunning && pod.Spec.NodeName == node {
			running++
		}
	}
	if running != count || len(pods.Items) != count {
		return fmt.Errorf("%d of %d Pods run on their Machines, want %d", running, len(pods.Items), count)
	}
	return nil
}

// count is how many instances each shard was made to order until a moment.
type count map[string]int

func newCount(t *testing.T) count {
	t.Helper()
	orders := count{}
	for _, shard := range shardIDs {
		orders[shard] = len(ordersOf(t, shard))
	}
	return orders
}

func ordersOf(t *testing.T, shard string) []nstance.Order {
	t.Helper()
	orders, err := env.n.Orders(shard)
	if err != nil {
		t.Fatal(err)
	}
	return orders
}

// oneEach fails the test unless every Pod of a namespace has one machine, every
// machine one instance, and no shard has made another one since. It returns how
// many each shard has made.
func (c count) oneEach(t *testing.T, namespace string) map[string]int {
	t.Helper()
	pods, err := env.kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	machines, err := machinesOf(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	instances := map[string]string{}
	for _, m := range machines {
		instances[m.Labels[v1beta1.LabelPodUID]] = m.Status.Shard + "/" + m.Status.InstanceID
	}
	if len(machines) != len(pods.Items) || len(instances) != len(pods.Items) {
		t.Errorf("%d Pods have %d machines, for %d different Pods", len(pods.Items), len(machines), len(instances))
	}
	for _, pod := range pods.Items {
		if instances[string(pod.UID)] == "" {
			t.Errorf("Pod %s has no machine", pod.Name)
		}
	}
	wanted := map[string]bool{}
	for _, instance := range instances {
		wanted[instance] = true
	}
	ordered := map[string]int{}
	for _, shard := range shardIDs {
		for _, order := range ordersOf(t, shard)[c[shard]:] {
			ordered[shard]++
			if !wanted[shard+"/"+order.Instance] {
				t.Errorf("shard %s has made instance %s, which is no machine's", shard, order.Instance)
			}
			delete(wanted, shard+"/"+order.Instance)
		}
	}
	for instance := range wanted {
		t.Errorf("nobody was asked for instance %s of a machine", instance)
	}
	return ordered
}
