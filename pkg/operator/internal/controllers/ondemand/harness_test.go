// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// harness is a controller with its dependencies. Its API server is used over HTTP, because the
// informer of Pods filters responses.
type harness struct {
	*controllertest.Harness

	*apiServer

	t          *testing.T
	controller *Controller
}

// newHarness returns a controller with shards, and an API server with a Cluster and
// Pods.
func newHarness(t *testing.T, limit int, shards *shardtest.Shards, pods ...*corev1.Pod) *harness {
	t.Helper()
	h := &harness{apiServer: newAPIServer(), t: t}
	for _, pod := range pods {
		h.putPod(pod)
	}
	h.start(limit, shards)
	return h
}

// start replaces the controller, as a restart does. Only the API server is kept.
func (h *harness) start(limit int, shards *shardtest.Shards) {
	h.t.Helper()
	h.Harness = controllertest.NewHarness(h.t, shards)
	podClient, err := metadata.NewForConfig(h.config())
	require.NoError(h.T, err)
	client, err := versioned.NewForConfig(h.config())
	require.NoError(h.T, err)
	capiClient, err := capi.NewForConfig(h.config())
	require.NoError(h.T, err)
	h.Workload.Metadata, h.Nstance, h.Dependencies.CAPI = podClient, client.InfrastructureV1beta1(), capiClient
	h.Informers.Pods = NewPodInformer(podClient, clusterName, 0)
	h.controller, err = New(h.Dependencies, Options{Limit: limit, Namespaces: []string{AllNamespaces}})
	require.NoError(h.T, err)
	assert.Len(h.t, h.controller.HasSynced(), 4, "one handler per informer")
	h.controller.podsSynced = func() bool { return true }
	h.Put(h.Informers.Clusters, controllertest.NewCluster())
	h.show()
}

// show makes the caches equal to the API server, except for Pods that request no machine or
// have finished.
func (h *harness) show() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var pods, machines, nstanceMachines []any
	for key, object := range h.objects {
		resource, _, _ := strings.Cut(key, "/")
		switch resource {
		case "pods":
			if pod := metadataOf(object); requestsMachine(pod, clusterName) && unfinished.Matches(fieldsOf(object)) {
				pods = append(pods, essentials(pod))
			}
		case "machines":
			machines = append(machines, typed[clusterv1.Machine](object))
		case "nstancemachines":
			nstanceMachines = append(nstanceMachines, typed[v1beta1.NstanceMachine](object))
		}
	}
	version := strconv.Itoa(h.version)
	require.NoError(h.T, h.Informers.Pods.GetIndexer().Replace(pods, version))
	require.NoError(h.T, h.Informers.Machines.GetIndexer().Replace(machines, version))
	require.NoError(h.T, h.Informers.Nstance.NstanceMachines().Informer().GetIndexer().Replace(nstanceMachines, version))
}

// store puts an object into the API server, as another client does.
func (h *harness) store(resource string, object runtime.Object) {
	h.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	require.NoError(h.T, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.put(resource, &unstructured.Unstructured{Object: content})
}

// remove removes an object from the API server.
func (h *harness) remove(resource string, pod *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(resource + "/" + namespace + "/" + machineName(pod.UID))
}

// sync syncs a Pod once and returns the writes.
func (h *harness) sync(pod types.UID) (writes []string, requeue time.Duration, err error) {
	h.t.Helper()
	h.writes = nil
	requeue, err = h.controller.sync(h.Ctx, pod)
	return h.writes, requeue, err
}

// expect updates the caches, syncs a Pod once, which must succeed, and compares the writes. {}
// stands for the name of the machine.
func (h *harness) expect(pod *corev1.Pod, want ...string) {
	h.t.Helper()
	h.show()
	got, requeue, err := h.sync(pod.UID)
	require.NoError(h.T, err)
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], "{}", machineName(pod.UID))
	}
	if !slices.Equal(got, want) || requeue != 0 {
		h.t.Errorf("wrote %q and waits %s, want %q", got, requeue, want)
	}
}

// stored returns an object from the API server.
func stored[T any](h *harness, resource string, pod *corev1.Pod) *T {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	object, ok := h.objects[resource+"/"+namespace+"/"+machineName(pod.UID)]
	require.True(h.t, ok, "there is no object of %s for Pod %s", resource, pod.Name)
	return typed[T](object)
}

func typed[T any](object *unstructured.Unstructured) *T {
	into := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into); err != nil {
		panic(err)
	}
	return into
}

const (
	namespace   = controllertest.Namespace
	clusterName = controllertest.ClusterName
)

// newPod returns a Pod that requests a machine of a group.
func newPod(name, group string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID("pod-" + name),
			Annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// plainPod returns a Pod that requests no machine.
func plainPod(name string) *corev1.Pod {
	pod := newPod(name, "")
	pod.Annotations = map[string]string{"example.com/note": "nothing"}
	return pod
}

// inCache returns the Pod that the informer stores.
func inCache(pod *corev1.Pod) *metav1.PartialObjectMetadata {
	return essentials(&metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta})
}

// newMachine and newNstanceMachine return the pair of a Pod with a minimal spec.
func newMachine(pod *corev1.Pod) *clusterv1.Machine {
	return &clusterv1.Machine{ObjectMeta: metaFor(pod)}
}

func newNstanceMachine(pod *corev1.Pod) *v1beta1.NstanceMachine {
	machine := &v1beta1.NstanceMachine{ObjectMeta: metaFor(pod)}
	machine.Spec.GroupRef.Name = v1beta1.Identifier(pod.Annotations[v1beta1.AnnotationOnDemandGroup])
	return machine
}

func metaFor(pod *corev1.Pod) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: "on-demand-" + string(pod.UID), UID: "uid-of-" + pod.UID, ResourceVersion: "1",
		Labels:      map[string]string{v1beta1.LabelPodUID: string(pod.UID)},
		Annotations: map[string]string{v1beta1.AnnotationPodNamespace: pod.Namespace, v1beta1.AnnotationPodName: pod.Name},
	}
}

// owned adds the Machine as owner, as Cluster API does.
func owned(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	machine.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: machine.Name, UID: "uid-of-owner", Controller: ptr.To(true),
	}}
	return machine
}

// newShards returns shard a with groups.
func newShards(groups ...string) *shardtest.Shards {
	shards := shardtest.New()
	setGroups(shards, "a", groups...)
	return shards
}

// setGroups adds or replaces a shard, with groups.
func setGroups(shards *shardtest.Shards, id string, groups ...string) {
	shards.ByID[id] = shardtest.NewShard()
	for _, key := range groups {
		shards.SetGroup(id, shard.Group{Key: key})
	}
}
