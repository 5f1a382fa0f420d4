// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A pool has real Nodes: Pods run on them, kubectl shows their logs and runs commands in
// them.
func TestPoolOfMachines(t *testing.T) {
	skipUnlessFull(t)
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
	skipUnlessFull(t)
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
	// One that fails before the Pod runs there is replaced.
	started := containers.started(t, name)
	assert.Equal(t, build.Spec.NodeName, started[len(started)-1])
	assert.Len(t, ids(t, name), 1)
	require.NoError(t, client.Delete(t.Context(), "build", metav1.DeleteOptions{}))
	containers.untilRemoved(t, name, len(started))
	untilNoNodes(t, name)
	containers.expectCounts(t, name, len(started), len(started))
}
