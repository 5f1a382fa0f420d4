// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
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

// A store runs on real Nodes: the marekvs operator has written its probes, its preStop hook and
// its volumes. No acknowledged key is lost while it shrinks, gets a new image and an image that
// does not start, and while two of its Nodes are drained.
func TestStoreOnMachines(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	t.Parallel()
	env.CreatePoolForTest(t, storeName, 4)
	env.CreateNamespace(t, storeName)
	clusters := startStoreOperator(t)
	createStoreVolumes(t, 5)
	pods := followStorePods(t)
	t.Cleanup(func() { deleteStore(t, clusters) })
	_, err := clusters.Create(t.Context(), &marekvsv1alpha1.MarekvsCluster{
		ObjectMeta: metav1.ObjectMeta{Name: storeCluster},
		Spec: marekvsv1alpha1.MarekvsClusterSpec{
			Image: "localhost/store:1", Nodes: 5, ReplicationFactor: 2,
			Storage:      marekvsv1alpha1.Storage{Size: ptr.To(resource.MustParse("1Gi"))},
			Resources:    marekvsv1alpha1.Resources{CPU: ptr.To(resource.MustParse("20m")), Memory: ptr.To(resource.MustParse("64Mi"))},
			NodeSelector: map[string]string{v1beta1.LabelGroup: storeName},
			Spread:       marekvsv1alpha1.Spread{Hostname: marekvsv1alpha1.HostnameSpread{WhenUnsatisfiable: corev1.DoNotSchedule}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	untilStoreHealthy(t, clusters, 5)
	client := newStoreClient(t)
	client.untilWritten(t, 200)

	env.Kubectl(t, "--namespace", storeName, "scale", "mkv/"+storeCluster, "--replicas=4")
	untilStoreHealthy(t, clusters, 4)
	pods.expectEnded(t, storeCluster+"-4")
	client.untilWritten(t, 100)

	setImage(t, clusters, "localhost/store:2")
	untilStoreHealthy(t, clusters, 4)
	assert.Equal(t, map[string]int{"localhost/store:2": 4}, pods.images())
	pods.expectEnded(t, storeCluster+"-0", storeCluster+"-1", storeCluster+"-2", storeCluster+"-3")
	client.untilWritten(t, 100)

	setImage(t, clusters, "localhost/store:broken")
	untilRolloutHalted(t, clusters)
	assert.Equal(t, map[string]int{"localhost/store:2": 3, "localhost/store:broken": 1}, pods.images())
	client.untilWritten(t, 100)
	setImage(t, clusters, "localhost/store:2")
	untilStoreHealthy(t, clusters, 4)
	assert.Equal(t, map[string]int{"localhost/store:2": 4}, pods.images())
	pods.expectEnded(t, storeCluster+"-3")

	// Each of the four Nodes has one Pod, and two are deleted at the same time.
	env.Scale(t, storeName, 2)
	containers.untilRemoved(t, storeName, 2)
	untilStoreHealthy(t, clusters, 4)
	containers.expectDrained(t, storeName, 2)
	client.untilWritten(t, 100)
	assert.Equal(t, 1, pods.mostEnding(), "Pods that ended at the same time")
	assert.Equal(t, 3, pods.fewestReady(), "Pods that were ready all the time")
	client.expectNoLoss(t)
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
	client, err := versioned.NewForConfig(env.AdminConfig())
	require.NoError(t, err)
	return client.MarekvsV1alpha1().MarekvsClusters(storeName)
}

// createStoreVolumes creates volumes for the claims of the store: folders of this machine, which
// all Nodes share.
func createStoreVolumes(t *testing.T, count int) {
	t.Helper()
	client := env.Kube.CoreV1().PersistentVolumes()
	for n := range count {
		name := storeName + "-" + strconv.Itoa(n)
		path := filepath.Join(volumes, name)
		require.NoError(t, os.Mkdir(path, 0o700))
		_, err := client.Create(t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: v1beta1.LabelGroup, Operator: corev1.NodeSelectorOpIn, Values: []string{storeName}}},
				}}}},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() {
			assert.NoError(t, client.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
		})
	}
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
	patch := fmt.Appendf(nil, `{"spec":{"image":%q}}`, image)
	_, err := clusters.Patch(t.Context(), storeCluster, types.MergePatchType, patch, metav1.PatchOptions{})
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

// leftMessage is the message of the store when it has terminated after its preStop hook.
const leftMessage = "drained, handed over"

// storePods records the Pods of the store.
type storePods struct {
	mu sync.Mutex
	// present has the Pods by name, and ended has the exit states of the containers of earlier
	// Pods that have served, by the name of the Pod.
	present map[string]*corev1.Pod
	ended   map[string][]corev1.ContainerStateTerminated
	// complete is set when five Pods were ready once, and fewest is the least number of ready Pods
	// since. most is how many Pods were being deleted at the same time.
	complete     bool
	fewest, most int
}

// followStorePods records the Pods of the store until the end of the test.
func followStorePods(t *testing.T) *storePods {
	t.Helper()
	p := &storePods{present: map[string]*corev1.Pod{}, ended: map[string][]corev1.ContainerStateTerminated{}}
	informer := informers.NewSharedInformerFactoryWithOptions(env.Kube, 0, informers.WithNamespace(storeName)).Core().V1().Pods().Informer()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	require.NoError(t, testcluster.RunInformer(ctx, informer, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.set(object.(*corev1.Pod)) },
		UpdateFunc: func(_, object any) { p.set(object.(*corev1.Pod)) },
		DeleteFunc: func(object any) {
			if deleted, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = deleted.Obj
			}
			p.remove(object.(*corev1.Pod))
		},
	}))
	return p
}

func (p *storePods) set(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.present[pod.Name] = pod
	p.count()
}

func (p *storePods) remove(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Terminated != nil && status.RestartCount == 0 {
			p.ended[pod.Name] = append(p.ended[pod.Name], *status.State.Terminated)
		}
	}
	delete(p.present, pod.Name)
	p.count()
}

// count counts the Pods that are ready. p.mu must be locked.
func (p *storePods) count() {
	ready, ending := 0, 0
	for _, pod := range p.present {
		switch {
		case pod.DeletionTimestamp != nil:
			ending++
		case isReady(pod):
			ready++
		}
	}
	p.most = max(p.most, ending)
	if !p.complete {
		p.complete, p.fewest = ready == 5, ready
		return
	}
	p.fewest = min(p.fewest, ready)
}

// isReady reports whether a Pod is ready.
func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// mostEnding returns how many Pods were being deleted at the same time.
func (p *storePods) mostEnding() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

// fewestReady returns the least number of Pods that were ready at any time since five were.
func (p *storePods) fewestReady() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fewest
}

// images returns the number of Pods by image.
func (p *storePods) images() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	images := map[string]int{}
	for _, pod := range p.present {
		images[pod.Spec.Containers[0].Image]++
	}
	return images
}

// expectEnded waits until Pods have ended once more each: after their preStop hook, with their
// copies elsewhere, and not killed.
func (p *storePods) expectEnded(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		testcluster.Eventually(t, time.Minute, "Pod "+name+" has ended", func(context.Context) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.ended[name]) != 1 {
				return fmt.Errorf("it has ended %d times", len(p.ended[name]))
			}
			return nil
		})
		p.mu.Lock()
		end := p.ended[name][0]
		delete(p.ended, name)
		p.mu.Unlock()
		if end.ExitCode != 0 || end.Message != leftMessage {
			t.Errorf("Pod %s has ended with code %d, %q", name, end.ExitCode, end.Message)
		}
	}
}
