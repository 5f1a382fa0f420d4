// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"testing"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// A pool has real Nodes: Pods run on them, kubectl shows their logs and runs commands in
// them.
func TestPoolOfMachines(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	const name = "workers"
	env.CreatePoolForTest(t, name, 0)
	env.Scale(t, name, 1)
	createDeployment(t, name, 1)
	env.UntilRunning(t, name, 1)
	untilAvailable(t, name, 1)

	web := pods(t.Context(), t, name)[0]
	assert.Contains(t, env.Kubectl(t, "logs", "--namespace", name, web.Name), "listening at")
	// A second server in the same Pod cannot listen at the port.
	output, err := env.KubectlCommand(t.Context(), "exec", "--namespace", name, web.Name, "--", "/web").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(output), "address already in use")
}

// A Pod gets a machine of its own, whose Node it selects, and which is deleted with it.
func TestPodHasAMachine(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	const name = "builders"
	pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
	pool.Spec.Template = installation.OnDemandTemplate
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, 0), pool))
	t.Cleanup(func() { env.DeletePools(t, name) })
	env.CreateNamespace(t, name)
	spec := webPod(name)
	spec.NodeSelector = map[string]string{installation.LabelPodNamespace: name, installation.LabelPodName: "build"}
	client := env.Kube.CoreV1().Pods(name)
	_, err := client.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "build", Annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: name}},
		Spec:       spec,
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	build := untilPodReady(t, name, "build")
	// A machine that fails before the Pod runs there is replaced.
	started := containers.started(t, name)
	assert.Equal(t, build.Spec.NodeName, started[len(started)-1])
	assert.Len(t, ids(t, name), 1)
	require.NoError(t, client.Delete(t.Context(), "build", metav1.DeleteOptions{}))
	containers.untilRemoved(t, name, len(started))
	env.UntilNoNodes(t, 3*time.Minute, name)
	containers.expectCounts(t, name, len(started), len(started))
}

// While a pool is scaled over three shards from zero to six and to two, a Deployment serves
// every request, and every Node is drained before its container is stopped.
func TestNoRequestFailsWhileAPoolIsScaled(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const name = "serving"
	env.CreatePoolForTest(t, name, 0)
	createDeployment(t, name, 2)
	client := newServiceClient(t, name)

	env.Scale(t, name, 6)
	env.UntilRunning(t, name, 6)
	// With a Deployment of this size from the start, all Pods might be on the first Nodes.
	scaleDeployment(t, name, 6)
	untilAvailable(t, name, 6)
	client.untilServed(t, 300)

	env.Scale(t, name, 2)
	containers.untilRemoved(t, name, 4)
	env.UntilRunning(t, name, 2)
	untilAvailable(t, name, 6)
	client.untilServed(t, 300)
	client.expectNoFailure(t)
	if _, pods, _ := client.counts(); pods <= 6 {
		t.Errorf("%d Pods have served, want more than there are at once: none was evicted", pods)
	}

	containers.expectCounts(t, name, 6, 4)
	containers.expectDrained(t, name, 4)
	assert.Len(t, ids(t, name), 2)
}

// The operator and a shard server are killed while a pool is scaled up, and again while it is
// scaled down: no instance has two machines, no running instance is replaced, and no instance is
// left. A machine that Docker has not started when its server is killed counts as failed, and is
// replaced. It is the only test of real Nodes in make test: its pool is created, scaled, drained
// and deleted.
func TestCrashesWhileAPoolIsScaled(t *testing.T) {
	const name = "crashes"
	large, small := tier.Pick[int32](3, 6), tier.Pick[int32](1, 2)
	env.CreatePoolForTest(t, name, 0)
	createDeployment(t, name, small)

	env.Scale(t, name, large)
	containers.untilStarted(t, name, int(small))
	before := containers.started(t, name)
	crash(t, shardIDs[1])
	env.UntilRunning(t, name, large)
	// With a Deployment of this size from the start, all Pods might be on Nodes that stay.
	scaleDeployment(t, name, large)
	untilAvailable(t, name, large)
	interrupted := containers.removed(t, name)
	for _, instance := range interrupted {
		assert.NotContains(t, before, instance, "instances that were replaced")
	}
	containers.expectCounts(t, name, int(large)+len(interrupted), len(interrupted))
	assert.Len(t, ids(t, name), int(large))

	// The last shard has no instances afterwards. Its drains take some seconds, because the budget
	// allows one eviction at a time.
	env.Scale(t, name, small)
	untilCount(t, "stopped", containers.stopped, name, len(interrupted)+1)
	crash(t, shardIDs[2])
	gone := int(large-small) + len(interrupted)
	containers.untilRemoved(t, name, gone)
	env.UntilRunning(t, name, small)
	containers.expectCounts(t, name, int(large)+len(interrupted), gone)
	containers.expectDrained(t, name, gone)
	assert.Len(t, ids(t, name), int(small))
	untilAvailable(t, name, large)
}

// crash kills the operator and the server of a shard, and starts both again.
func crash(t *testing.T, shard string) {
	t.Helper()
	testcluster.Kill(t, env.OperatorProcess())
	testcluster.Kill(t, env.ShardServer(shard))
	env.ReleaseLease(t)
	testcluster.Start(t, env.ShardServer(shard))
	testcluster.Start(t, env.OperatorProcess())
}

// A node whose processes are suspended has a silent agent, and Docker reports it as paused.
func TestPausedNodeIsReplaced(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	expectReplaced(t, "paused", func(id string) error {
		_, err := docker.Client.ContainerPause(t.Context(), id, client.ContainerPauseOptions{})
		return err
	})
}

func TestKilledNodeIsReplaced(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	expectReplaced(t, "killed", func(id string) error {
		_, err := docker.Client.ContainerKill(t.Context(), id, client.ContainerKillOptions{})
		return err
	})
}

// A node without a kubelet exits.
func TestNodeWithoutKubeletIsReplaced(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	expectReplaced(t, "kubelet", func(id string) error {
		return runInContainer(t.Context(), id, "pkill", "-KILL", "-x", "kubelet")
	})
}

// expectReplaced breaks one of the three nodes of a pool. This node is replaced, and the other two
// stay.
func expectReplaced(t *testing.T, name string, breakNode func(container string) error) {
	t.Helper()
	env.CreatePoolForTest(t, name, 0)
	env.Scale(t, name, 3)
	env.UntilRunning(t, name, 3)
	before := ids(t, name)
	require.Len(t, before, 3)
	broken := containers.started(t, name)[1]

	require.NoError(t, breakNode(before[broken]))
	containers.untilRemoved(t, name, 1)
	containers.untilStarted(t, name, 4)
	testcluster.Eventually(t, time.Minute, "the Node of the broken machine is deleted", func(ctx context.Context) error {
		_, err := env.Kube.CoreV1().Nodes().Get(ctx, broken, metav1.GetOptions{})
		return testcluster.NotFound("Node "+broken, err)
	})
	env.UntilRunning(t, name, 3)
	containers.expectCounts(t, name, 4, 1)
	assert.Equal(t, []string{broken}, containers.removed(t, name))
	assert.Equal(t, []string{broken}, containers.instances(t, name, events.ActionDie))
	after := ids(t, name)
	assert.Len(t, after, 3)
	delete(before, broken)
	for instance, id := range before {
		assert.Equal(t, id, after[instance], "the container of instance %s", instance)
	}
}
