// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// Many Pods that are created at once get exactly one machine each, and every shard gets its
// share. No instance of their type is available, so that no Node is created: the test does
// not measure Cluster API with many Nodes.
func TestManyPodsAtOnce(t *testing.T) {
	const namespace = "many"
	pods := tier.Pick(60, 500)
	// stall is after how long without another instance the test fails. The time for all of them
	// depends on the machine: an instance is requested only when Cluster API has set the owner of
	// its NstanceMachine, and Cluster API makes most of the requests that keep the API server
	// busy.
	const stall = 5 * time.Minute
	watchOperator(t)
	newNamespace(t, namespace)
	before := env.CountCreations(t)
	begin := time.Now()
	createPods(t, namespace, pods, func(pod *corev1.Pod) {
		pod.Annotations[v1beta1.AnnotationOnDemandInstanceType] = unavailable
	})
	t.Logf("%d Pods created in %s", pods, time.Since(begin).Round(time.Second/10))
	testcluster.EventuallyByProgress(t, stall, "all machines have an instance", func(ctx context.Context) (int, error) {
		return allCreated(ctx, namespace, pods)
	})
	t.Logf("%d machines have an instance after %s", pods, time.Since(begin).Round(time.Second/10))
	if err := machineCount(t.Context(), namespace, pods); err != nil {
		t.Error(err)
	}

	created := expectOneEach(t, namespace, before)
	t.Logf("instances on the shards: %v", created)
	// A placement that arrives in the cache while the next machine is placed counts twice.
	// Otherwise the shares are equal (TestManyNstanceMachinesAreSpreadEvenly).
	for _, shard := range shardIDs {
		assert.Greater(t, created[shard], pods/len(shardIDs)/2, "instances on shard %s", shard)
	}
}

// createPods creates Pods that request machines, several at the same time.
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
			_, err := env.Kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
			return err
		})
	}
	require.NoError(t, creating.Wait())
}

// allCreated succeeds when the Pods of a namespace have so many NstanceMachines, and
// the status of each names its instance. It returns how many do.
func allCreated(ctx context.Context, namespace string, count int) (created int, err error) {
	machines, err := machinesOf(ctx, namespace)
	if err != nil {
		return 0, err
	}
	for _, m := range machines {
		if m.Status.InstanceID != "" {
			created++
		}
	}
	if created != count || len(machines) != count {
		return created, fmt.Errorf("%d of %d machines have an instance, want %d", created, len(machines), count)
	}
	return created, nil
}

// allRun succeeds when every Pod of a namespace runs on the Node of its machine, and
// all their Machines are Running.
func allRun(ctx context.Context, namespace string, count int) error {
	machines, err := env.Machines().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelPodUID})
	if err != nil {
		return err
	}
	nodes := map[string]string{}
	for _, m := range machines.Items {
		if m.Status.Phase == string(clusterv1.MachinePhaseRunning) {
			nodes[m.Labels[v1beta1.LabelPodUID]] = m.Status.NodeRef.Name
		}
	}
	pods, err := env.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
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

// expectOneEach fails the test unless every Pod of a namespace has one machine, every
// machine one instance, and no shard has created another instance since it had created as
// many as before has (CountCreations). It returns how many each shard has created.
func expectOneEach(t *testing.T, namespace string, before map[string]int) map[string]int {
	t.Helper()
	pods, err := env.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	machines, err := machinesOf(t.Context(), namespace)
	require.NoError(t, err)
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
	created := map[string]int{}
	for _, shard := range shardIDs {
		for _, creation := range env.Creations(t, shard)[before[shard]:] {
			created[shard]++
			if !wanted[shard+"/"+creation.Instance] {
				t.Errorf("shard %s has created instance %s, which belongs to no machine", shard, creation.Instance)
			}
			delete(wanted, shard+"/"+creation.Instance)
		}
	}
	for instance := range wanted {
		t.Errorf("no shard has created instance %s of a machine", instance)
	}
	return created
}

// An operator that is killed repeatedly while it creates machines creates each of
// them once.
func TestOperatorKilledWhileCreatingMachines(t *testing.T) {
	const namespace, podsPerKill = "killed", 2
	kills := tier.Pick(6, 20)
	// maxWrites is after how many writes at the latest a leader is killed: two
	// machines take at least as many.
	const maxWrites = 10
	watchOperator(t)
	newNamespace(t, namespace)
	before := env.CountCreations(t)
	random := rand.New(rand.NewPCG(tier.Seeds(t, 1)[0], 0))
	for i := range kills {
		for j := range podsPerKill {
			createPod(t, newPod(namespace, fmt.Sprintf("builder-%d", i*podsPerKill+j)))
		}
		from, after := env.AuditEnd(t), 1+random.IntN(maxWrites)
		testcluster.EventuallyEvery(t, 5*time.Millisecond, time.Minute, fmt.Sprintf("leader %d writes", i), func(context.Context) error {
			if written := len(env.OperatorWrites(t, from)); written < after {
				return fmt.Errorf("%d writes, want %d", written, after)
			}
			return nil
		})
		require.NoError(t, env.OperatorProcess().Kill(t.Context()))
		env.ReleaseLease(t)
		testcluster.Start(t, env.OperatorProcess())
	}
	testcluster.EventuallyEvery(t, time.Second, 3*time.Minute, "all Pods run on their machines", func(ctx context.Context) error {
		return allRun(ctx, namespace, kills*podsPerKill)
	})
	t.Logf("instances on the shards: %v", expectOneEach(t, namespace, before))
}
