// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	"nstance.dev/operator/pkg/generated/informers/externalversions"
)

// harness is a controller, an API server, and caches that show what a test wants.
type harness struct {
	*apiServer

	t               *testing.T
	controller      *Controller
	pods            cache.SharedIndexInformer
	machines        *capi.Informer[*clusterv1.Machine]
	nstanceMachines cache.SharedIndexInformer
	clusters        *capi.Informer[*clusterv1.Cluster]
	recorder        *events.FakeRecorder
}

// newHarness makes a controller that sees shards, a Cluster, and Pods that the API
// server has too.
func newHarness(t *testing.T, limit int, shards servers, pods ...*corev1.Pod) *harness {
	t.Helper()
	h := &harness{apiServer: newAPIServer(), t: t}
	for _, pod := range pods {
		h.putPod(pod)
	}
	h.start(limit, shards)
	return h
}

// start makes the controller anew, as after a restart: of what it knew only the
// API server is left.
func (h *harness) start(limit int, shards servers) {
	h.t.Helper()
	podClient, err := metadata.NewForConfig(h.config())
	h.noError(err)
	client, err := versioned.NewForConfig(h.config())
	h.noError(err)
	capiClient, err := capi.NewForConfig(h.config())
	h.noError(err)
	nstance := externalversions.NewSharedInformerFactory(client, 0).Infrastructure().V1beta1()
	h.pods = NewPodInformer(podClient, 0)
	h.machines = capi.NewMachineInformer(capiClient, namespace, 0)
	h.nstanceMachines = nstance.NstanceMachines().Informer()
	h.clusters = capi.NewClusterInformer(capiClient, namespace, 0)
	h.recorder = events.NewFakeRecorder(10_000)
	c, registrations, err := New(namespace, clusterName, limit, podClient, client.InfrastructureV1beta1(), capiClient,
		h.pods, nstance.NstanceMachines(), h.machines, h.clusters, shards, shards, h.recorder)
	h.noError(err)
	if len(registrations) != 4 {
		h.t.Errorf("%d registrations to wait for, want one per informer", len(registrations))
	}
	c.podsSynced = func() bool { return true }
	h.controller = c
	h.noError(h.clusters.GetIndexer().Add(newCluster()))
	h.show()
}

// show makes the caches equal to what the API server has. A Pod that does not ask
// or has finished is not in them.
func (h *harness) show() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var pods, machines, nstanceMachines []any
	for key, object := range h.objects {
		resource, _, _ := strings.Cut(key, "/")
		switch resource {
		case "pods":
			if pod := metadataOf(object); asks(pod) && unfinished.Matches(fieldsOf(object)) {
				pods = append(pods, essentials(pod))
			}
		case "machines":
			machines = append(machines, typed[clusterv1.Machine](object))
		case "nstancemachines":
			nstanceMachines = append(nstanceMachines, typed[v1beta1.NstanceMachine](object))
		}
	}
	version := strconv.Itoa(h.version)
	h.noError(h.pods.GetIndexer().Replace(pods, version))
	h.noError(h.machines.GetIndexer().Replace(machines, version))
	h.noError(h.nstanceMachines.GetIndexer().Replace(nstanceMachines, version))
}

// store puts an object into the API server, as somebody else would.
func (h *harness) store(resource string, object runtime.Object) {
	h.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	h.noError(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.put(resource, &unstructured.Unstructured{Object: content})
}

// remove takes an object out of the API server.
func (h *harness) remove(resource string, pod *corev1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(resource + "/" + namespace + "/" + machineName(pod.UID))
}

// sync syncs a Pod once and returns the writes.
func (h *harness) sync(pod types.UID) (writes []string, requeue time.Duration, err error) {
	h.t.Helper()
	ctx := klog.NewContext(h.t.Context(), ktesting.NewLogger(h.t, ktesting.NewConfig()))
	h.writes = nil
	requeue, err = h.controller.sync(ctx, pod)
	return h.writes, requeue, err
}

// expect syncs a Pod once, without an error, with the caches up to date, and
// compares the writes. {} stands for the name of the machine.
func (h *harness) expect(pod *corev1.Pod, want ...string) {
	h.t.Helper()
	h.show()
	got, requeue, err := h.sync(pod.UID)
	h.noError(err)
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], "{}", machineName(pod.UID))
	}
	if !slices.Equal(got, want) || requeue != 0 {
		h.t.Errorf("wrote %q and waits %s, want %q", got, requeue, want)
	}
}

// events are what was recorded since the last call.
func (h *harness) events() []string {
	var recorded []string
	for {
		select {
		case event := <-h.recorder.Events:
			recorded = append(recorded, event)
		default:
			return recorded
		}
	}
}

func (h *harness) expectEvents(want ...string) {
	h.t.Helper()
	if got := h.events(); !slices.Equal(got, want) {
		h.t.Errorf("recorded %q, want %q", got, want)
	}
}

func (h *harness) noError(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// stored is an object of the API server.
func stored[T any](h *harness, resource string, pod *corev1.Pod) *T {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	object, ok := h.objects[resource+"/"+namespace+"/"+machineName(pod.UID)]
	if !ok {
		h.t.Fatalf("there is no object of %s for Pod %s", resource, pod.Name)
	}
	return typed[T](object)
}

func typed[T any](object *unstructured.Unstructured) *T {
	into := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into); err != nil {
		panic(err)
	}
	return into
}
