// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/marekvsoperator"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	marekvsv1alpha1 "nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	marekvsclient "nstance.dev/operator/pkg/generated/clientset/versioned/typed/marekvs/v1alpha1"
)

const (
	// storeName is the name of the pool and of the namespace of the store's Pods, and storeCluster
	// the name of its MarekvsCluster.
	storeName, storeCluster = "store", "db"
	// storeMetricsPort is the port at which the store serves metrics.
	storeMetricsPort = 9121
	// storeTimeout limits one change of the store's cluster.
	storeTimeout = 4 * time.Minute
)

const (
	// storeMachines is the number of machines, one more than the store has nodes at first. storeNodes is
	// the number of these nodes.
	storeMachines, storeNodes = 4, 3
	// lostPod is the Pod of the node whose volume is local to its machine.
	lostPod = storeCluster + "-3"
)

// A store of three nodes runs on real Nodes with real volumes: the marekvs operator has written its probes, its preStop
// hook and its volumes. A client writes and reads all the time, and no acknowledged key is lost while the store grows
// and shrinks, gets a new image and an image that does not start, which its spec repairs, while its volumes grow,
// while a Node is lost with its volume and a Node without, and while two Nodes are drained.
func TestStoreOnMachines(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	s := createStore(t)
	s.client.untilWritten(t, 200)
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"the store grows", s.grow},
		{"the store is updated", s.update},
		{"an update halts because of a bad image", s.halt},
		{"the spec repairs it", s.repair},
		{"the volumes grow", s.growVolumes},
		{"a Node and its local volume are lost", s.loseVolume},
		{"the store shrinks", s.shrink},
		{"a Node is lost", s.loseNode},
		{"two Nodes are drained", s.drain},
	} {
		t.Log(step.name)
		step.run(t)
		s.client.untilWritten(t, 100)
	}
	assert.Equal(t, 1, s.pods.mostEnding(), "Pods that ended at the same time")
	s.client.expectNoLoss(t)
}

// storeSteps changes a store.
type storeSteps struct {
	clusters marekvsclient.MarekvsClusterInterface
	pods     *storePods
	client   *storeClient
	// killed are the machines that were killed.
	killed []string
}

// createStore creates a pool of machines and a store on it, with a client. It returns when all nodes are ready.
func createStore(t *testing.T) *storeSteps {
	t.Helper()
	env.CreatePoolForTest(t, storeName, storeMachines)
	env.CreateNamespace(t, storeName)
	s := &storeSteps{clusters: startStoreOperator(t)}
	createStoreClass(t)
	for n := range storeNodes {
		createStoreVolume(t, "store-shared-"+strconv.Itoa(n), "1Gi", anyMachine())
	}
	// Pods are spread over the Nodes that exist.
	env.UntilRunning(t, storeName, storeMachines)
	s.pods = followStorePods(t, storeNodes)
	t.Cleanup(func() { deleteStore(t, s.clusters) })
	_, err := s.clusters.Create(t.Context(), &marekvsv1alpha1.MarekvsCluster{
		ObjectMeta: metav1.ObjectMeta{Name: storeCluster},
		Spec: marekvsv1alpha1.MarekvsClusterSpec{
			Image: "localhost/store:1", Nodes: storeNodes, ReplicationFactor: 2,
			Storage: marekvsv1alpha1.Storage{
				Size: ptr.To(resource.MustParse("1Gi")), ClassName: storeName, ReplaceLostAfterSeconds: 5,
			},
			Resources:    marekvsv1alpha1.Resources{CPU: ptr.To(resource.MustParse("20m")), Memory: ptr.To(resource.MustParse("64Mi"))},
			NodeSelector: map[string]string{v1beta1.LabelGroup: storeName},
			Spread:       marekvsv1alpha1.Spread{Hostname: marekvsv1alpha1.HostnameSpread{WhenUnsatisfiable: corev1.DoNotSchedule}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	untilStoreHealthy(t, s.clusters, storeNodes)
	s.client = newStoreClient(t)
	return s
}

// grow adds a node, whose volume is local to the machine that has no Pod of the store.
func (s *storeSteps) grow(t *testing.T) {
	free := s.freeMachine(t)
	createStoreVolume(t, "store-local", "1Gi", onMachine(free))
	env.Kubectl(t, "--namespace", storeName, "scale", "mkv/"+storeCluster, "--replicas=4")
	untilStoreHealthy(t, s.clusters, 4)
	require.Equal(t, free.Name, s.pods.nodes()[lostPod])
}

// freeMachine returns a Node of the pool without a Pod of the store.
func (s *storeSteps) freeMachine(t *testing.T) *corev1.Node {
	t.Helper()
	nodes, err := env.Nodes(t.Context(), storeName)
	require.NoError(t, err)
	used := slices.Collect(maps.Values(s.pods.nodes()))
	free := slices.IndexFunc(nodes, func(node corev1.Node) bool { return !slices.Contains(used, node.Name) })
	require.NotEqual(t, -1, free, "Pods by Node: %v", s.pods.nodes())
	return &nodes[free]
}

// update updates every Pod, one at a time, each after its preStop hook.
func (s *storeSteps) update(t *testing.T) {
	setImage(t, s.clusters, "localhost/store:2")
	untilStoreHealthy(t, s.clusters, 4)
	assert.Equal(t, map[string]int{"localhost/store:2": 4}, s.pods.images())
	s.pods.expectEnded(t, storeCluster+"-0", storeCluster+"-1", storeCluster+"-2", lostPod)
}

// halt sets an image that does not start. One Pod gets it.
func (s *storeSteps) halt(t *testing.T) {
	setImage(t, s.clusters, "localhost/store:broken")
	untilRolloutHalted(t, s.clusters)
	assert.Equal(t, map[string]int{"localhost/store:2": 3, "localhost/store:broken": 1}, s.pods.images())
	s.pods.expectEnded(t, lostPod)
}

// repair corrects the image. The broken Pod gets it, and then the others.
func (s *storeSteps) repair(t *testing.T) {
	setImage(t, s.clusters, "localhost/store:1")
	untilStoreHealthy(t, s.clusters, 4)
	assert.Equal(t, map[string]int{"localhost/store:1": 4}, s.pods.images())
	s.pods.expectEnded(t, storeCluster+"-0", storeCluster+"-1", storeCluster+"-2")
}

// growVolumes raises the size of the volumes. No Pod is restarted, and the StatefulSet is another one.
func (s *storeSteps) growVolumes(t *testing.T) {
	sets := env.Kube.AppsV1().StatefulSets(storeName)
	before, err := sets.Get(t.Context(), storeCluster, metav1.GetOptions{})
	require.NoError(t, err)
	runs := s.pods.runs()
	patchStore(t, s.clusters, `{"spec":{"storage":{"size":"2Gi"}}}`)
	untilStoreVolumesGrow(t, "2Gi")
	untilStore(t, s.clusters, "the volumes have grown", func(status *marekvsv1alpha1.MarekvsClusterStatus) bool {
		return status.Phase == marekvsv1alpha1.PhaseHealthy && meta.IsStatusConditionTrue(status.Conditions, marekvsv1alpha1.ConditionVolumesExpanded)
	})
	after, err := sets.Get(t.Context(), storeCluster, metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotEqual(t, before.UID, after.UID)
	assert.Equal(t, "2Gi", after.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().String())
	assert.Equal(t, runs, s.pods.runs(), "Pods and restarts")
}

// loseVolume kills the machine with the local volume. The node gets another volume, with every copy. The other nodes
// keep their Pods and claims.
func (s *storeSteps) loseVolume(t *testing.T) {
	createStoreVolume(t, "store-spare", "2Gi", anyMachine())
	before, err := storeClaims(t.Context())
	require.NoError(t, err)
	runs := s.pods.runs()
	const claim = "data-" + lostPod
	s.kill(t, s.pods.nodes()[lostPod])
	testcluster.Eventually(t, storeTimeout, "claim "+claim+" is another one", func(ctx context.Context) error {
		now, err := storeClaims(ctx)
		if err == nil && (now[claim] == "" || now[claim] == before[claim]) {
			err = fmt.Errorf("its UID is %q", now[claim])
		}
		return err
	})
	untilStoreHealthy(t, s.clusters, 4)
	after, err := storeClaims(t.Context())
	require.NoError(t, err)
	delete(before, claim)
	delete(after, claim)
	assert.Equal(t, before, after)
	now := s.pods.runs()
	delete(runs, lostPod)
	delete(now, lostPod)
	assert.Equal(t, runs, now, "Pods and restarts")
	env.UntilRunning(t, storeName, storeMachines)
}

// kill kills a machine, and returns when it and its Node are deleted.
func (s *storeSteps) kill(t *testing.T, node string) {
	t.Helper()
	_, err := docker.Client.ContainerKill(t.Context(), ids(t, storeName)[node], client.ContainerKillOptions{})
	require.NoError(t, err)
	s.killed = append(s.killed, node)
	containers.untilRemoved(t, storeName, len(s.killed))
	testcluster.Eventually(t, time.Minute, "the Node of the killed machine is deleted", func(ctx context.Context) error {
		_, err := env.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		return testcluster.NotFound("Node "+node, err)
	})
}

// shrink removes the last node. Until now only one Pod was away at a time.
func (s *storeSteps) shrink(t *testing.T) {
	env.Kubectl(t, "--namespace", storeName, "scale", "mkv/"+storeCluster, "--replicas=3")
	untilStoreHealthy(t, s.clusters, storeNodes)
	s.pods.expectEnded(t, lostPod)
	assert.Equal(t, 3, s.pods.fewestReady(), "Pods that were ready all the time")
}

// loseNode kills a machine. Its Pod starts on another Node with its volume.
func (s *storeSteps) loseNode(t *testing.T) {
	const pod = storeCluster + "-1"
	before, err := storeClaims(t.Context())
	require.NoError(t, err)
	run, node := s.pods.runs()[pod], s.pods.nodes()[pod]
	s.kill(t, node)
	testcluster.Eventually(t, storeTimeout, "Pod "+pod+" is another one", func(context.Context) error {
		if now := s.pods.runs()[pod]; now.pod == "" || now.pod == run.pod {
			return fmt.Errorf("its UID is %q", now.pod)
		}
		return nil
	})
	untilStoreHealthy(t, s.clusters, storeNodes)
	assert.NotEqual(t, node, s.pods.nodes()[pod])
	after, err := storeClaims(t.Context())
	require.NoError(t, err)
	assert.Equal(t, before, after)
	env.UntilRunning(t, storeName, storeMachines)
}

// drain removes half of the machines at the same time, after their Pods were evicted one at a time.
func (s *storeSteps) drain(t *testing.T) {
	const left = 2
	env.Scale(t, storeName, left)
	containers.untilRemoved(t, storeName, len(s.killed)+storeMachines-left)
	untilStoreHealthy(t, s.clusters, storeNodes)
	drained := slices.DeleteFunc(containers.stopped(t, storeName), func(instance string) bool { return slices.Contains(s.killed, instance) })
	assert.Len(t, drained, storeMachines-left)
	for _, instance := range drained {
		assert.Empty(t, containers.atStop(instance), "Pods on Node %s when its container was stopped", instance)
	}
	assert.Equal(t, 2, s.pods.fewestReady(), "Pods that were ready all the time")
}

// startStoreOperator installs the marekvs operator and runs it until the end of the test.
func startStoreOperator(t *testing.T) marekvsclient.MarekvsClusterInterface {
	t.Helper()
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	program, err := controlplane.Builder{Root: root, Progress: t.Output()}.Marekvs(t.Context())
	require.NoError(t, err)
	require.NoError(t, marekvsoperator.Install(t.Context(), env.ControlPlane, root))
	ctx := context.WithoutCancel(t.Context())
	operator, err := marekvsoperator.Start(ctx, env.ControlPlane, marekvsoperator.Options{
		Name: "marekvs-operator", Program: program, Dir: t.TempDir(), MetricsPort: storeMetricsPort,
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, operator.Stop(ctx)) })
	clientset, err := versioned.NewForConfig(env.AdminConfig())
	require.NoError(t, err)
	return clientset.MarekvsV1alpha1().MarekvsClusters(storeName)
}

// deleteStore deletes the cluster of the store, and returns when its Pods are deleted.
func deleteStore(t *testing.T, clusters marekvsclient.MarekvsClusterInterface) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	assert.NoError(t, clusters.Delete(ctx, storeCluster, metav1.DeleteOptions{}))
	env.UntilNoPods(t, storeTimeout, storeName)
	claims := env.Kube.CoreV1().PersistentVolumeClaims(storeName)
	assert.NoError(t, claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}

func setImage(t *testing.T, clusters marekvsclient.MarekvsClusterInterface, image string) {
	t.Helper()
	patchStore(t, clusters, fmt.Sprintf(`{"spec":{"image":%q}}`, image))
}

func patchStore(t *testing.T, clusters marekvsclient.MarekvsClusterInterface, patch string) {
	t.Helper()
	_, err := clusters.Patch(t.Context(), storeCluster, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
}

// untilStoreHealthy waits until the cluster has so many nodes, which all run its template.
func untilStoreHealthy(t *testing.T, clusters marekvsclient.MarekvsClusterInterface, nodes int32) {
	t.Helper()
	untilStore(t, clusters, fmt.Sprintf("the store is healthy with %d nodes", nodes), func(status *marekvsv1alpha1.MarekvsClusterStatus) bool {
		return status.Phase == marekvsv1alpha1.PhaseHealthy && status.Replicas == nodes &&
			meta.IsStatusConditionTrue(status.Conditions, marekvsv1alpha1.ConditionRolledOut)
	})
}

func untilRolloutHalted(t *testing.T, clusters marekvsclient.MarekvsClusterInterface) {
	t.Helper()
	untilStore(t, clusters, "the update is halted", func(status *marekvsv1alpha1.MarekvsClusterStatus) bool {
		condition := meta.FindStatusCondition(status.Conditions, marekvsv1alpha1.ConditionRolledOut)
		return condition != nil && condition.Status == metav1.ConditionFalse && condition.Reason == marekvsv1alpha1.ReasonRolloutHalted
	})
}

// untilStore waits until the status is for the present generation and reached returns true.
func untilStore(t *testing.T, clusters marekvsclient.MarekvsClusterInterface, what string, reached func(*marekvsv1alpha1.MarekvsClusterStatus) bool) {
	t.Helper()
	testcluster.Eventually(t, storeTimeout, what, func(ctx context.Context) error {
		cluster, err := clusters.Get(ctx, storeCluster, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status := &cluster.Status; status.ObservedGeneration != cluster.Generation || !reached(status) {
			return fmt.Errorf("the phase is %s with %d nodes: %s; %+v", status.Phase, status.Replicas, status.Message, status.Conditions)
		}
		return nil
	})
}
