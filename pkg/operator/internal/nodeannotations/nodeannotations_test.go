// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nodeannotations

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/controller/apitest"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

func TestNodeAnnotations(t *testing.T) {
	for name, test := range map[string]struct {
		shape          shard.NodeShape
		labels, taints string
	}{
		"nothing": {shard.NodeShape{Architecture: "arm64"}, "", ""},
		"labels by key": {shard.NodeShape{Labels: shard.LabelsOf(map[string]string{"zone": "a", "example.com/tier": "batch", "spot": ""})},
			"example.com/tier=batch,spot=,zone=a", ""},
		"taints": {shard.NodeShape{Taints: []shard.Taint{{Key: "a", Value: "1", Effect: "NoSchedule"}, {Key: "b", Effect: "NoExecute"}}},
			"", "a=1:NoSchedule,b=:NoExecute"},
	} {
		got := nodeAnnotations(&test.shape, 0)
		if want := map[string]string{annotationLabels: test.labels, annotationTaints: test.taints, annotationMaxPods: ""}; !maps.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

var machinePoolResource = clusterv1.GroupVersion.WithResource("machinepools")

// annotated is an Annotator, and a MachinePool on an API server that records the managers of
// fields as a real one does.
type annotated struct {
	t         *testing.T
	tracker   clienttesting.ObjectTracker
	annotator *Annotator
	// cached is the MachinePool in the cache of the operator.
	cached *clusterv1.MachinePool
	// maxPods is the maximum of the pool.
	maxPods int32
	// requests counts the applies that arrived.
	requests int
}

func newAnnotated(t *testing.T) *annotated {
	scheme := runtime.NewScheme()
	require.NoError(t, clusterv1.AddToScheme(scheme))
	a := &annotated{t: t, tracker: clienttesting.NewFieldManagedObjectTracker(scheme,
		serializer.NewCodecFactory(scheme).UniversalDecoder(), managedfields.NewDeducedTypeConverter())}
	client, err := capi.NewForConfig(&rest.Config{Host: "http://capi.test", Transport: a})
	require.NoError(t, err)
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	// A synced cache has a resource version, empty or not.
	require.NoError(t, store.Replace(nil, "1"))
	a.annotator = &Annotator{CAPI: client, Writes: controller.NewWriteTracker(store)}
	made := &clusterv1.MachinePool{
		TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "workers", Namespace: controllertest.Namespace, UID: "1",
			Annotations: map[string]string{"example.com/team": "shop"},
		},
	}
	require.NoError(t, a.tracker.Create(machinePoolResource, made, controllertest.Namespace, metav1.CreateOptions{FieldManager: "kubectl"}))
	a.show()
	return a
}

func (a *annotated) live() *clusterv1.MachinePool {
	a.t.Helper()
	object, err := a.tracker.Get(machinePoolResource, controllertest.Namespace, "workers")
	require.NoError(a.t, err)
	return object.(*clusterv1.MachinePool)
}

// show makes the cache equal to the API server.
func (a *annotated) show() { a.cached = a.live() }

// set changes the annotations of the MachinePool as a user would; "" removes an annotation.
func (a *annotated) set(annotations map[string]string) {
	a.t.Helper()
	changed := a.live().DeepCopy()
	for key, value := range annotations {
		changed.Annotations[key] = value
		if value == "" {
			delete(changed.Annotations, key)
		}
	}
	require.NoError(a.t, a.tracker.Update(machinePoolResource, changed, controllertest.Namespace, metav1.UpdateOptions{FieldManager: "kubectl-annotate"}))
}

// RoundTrip serves server-side apply of the MachinePool, and nothing else.
func (a *annotated) RoundTrip(request *http.Request) (*http.Response, error) {
	a.requests++
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	applied := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &applied.Object); err != nil {
		return nil, err
	}
	if query := request.URL.Query(); request.Header.Get("Content-Type") != string(types.ApplyPatchType) ||
		query.Get("fieldManager") != controllers.FieldManager || query.Get("force") != "false" {
		return nil, fmt.Errorf("unexpected request %s %s", request.Method, request.URL)
	}
	if err := a.apply(applied); err != nil {
		return apitest.Respond(request, err)
	}
	written := a.live().DeepCopy()
	written.ResourceVersion = "2"
	return apitest.Respond(request, written)
}

func (a *annotated) apply(applied *unstructured.Unstructured) error {
	if applied.GetUID() != a.live().UID {
		return apierrors.NewConflict(machinePoolResource.GroupResource(), "workers", errors.New("the uid is another one"))
	}
	return a.tracker.Apply(machinePoolResource, applied, controllertest.Namespace, metav1.PatchOptions{FieldManager: controllers.FieldManager})
}

// expect annotates with shape, and compares the number of requests and the annotations
// other than the user's own.
func (a *annotated) expect(shape *shard.NodeShape, requests int, want map[string]string) {
	a.t.Helper()
	a.requests = 0
	assert.NoError(a.t, a.annotate(shape))
	assert.Equal(a.t, requests, a.requests, "requests")
	got := maps.Clone(a.live().Annotations)
	assert.Equal(a.t, "shop", got["example.com/team"], "removed the user's own annotation")
	delete(got, "example.com/team")
	if !maps.Equal(got, want) {
		a.t.Errorf("the annotations are %q, want %q", got, want)
	}
}

func (a *annotated) annotate(shape *shard.NodeShape) error {
	ctx := klog.NewContext(a.t.Context(), ktesting.NewLogger(a.t, ktesting.NewConfig()))
	return a.annotator.Annotate(ctx, a.cached, shape, a.maxPods)
}

// batch and plain are shapes with and without labels and taints.
var (
	batch = &shard.NodeShape{Labels: shard.LabelsOf(map[string]string{"tier": "batch"}), Taints: []shard.Taint{{Key: "batch", Value: "yes", Effect: "NoSchedule"}}}
	plain = &shard.NodeShape{Architecture: "amd64"}
	// batchAnnotations are the annotations for batch.
	batchAnnotations = map[string]string{annotationLabels: "tier=batch", annotationTaints: "batch=yes:NoSchedule"}
)

func TestAnnotateWritesOnceAndRemoves(t *testing.T) {
	a := newAnnotated(t)
	a.expect(nil, 0, nil)
	a.expect(plain, 0, nil)
	a.expect(batch, 1, batchAnnotations)
	if a.annotator.Writes.CaughtUp(cache.NewObjectName(controllertest.Namespace, "workers")) {
		t.Error("the next sync would not wait for the cache to show what was written")
	}
	a.show()
	a.expect(batch, 0, batchAnnotations)

	// Annotations stay while no shard reports a shape.
	a.expect(nil, 0, batchAnnotations)
	night := &shard.NodeShape{Labels: shard.LabelsOf(map[string]string{"tier": "night"}), Taints: batch.Taints}
	a.expect(night, 1, map[string]string{annotationLabels: "tier=night", annotationTaints: batchAnnotations[annotationTaints]})
	a.show()
	a.expect(&shard.NodeShape{Taints: batch.Taints}, 1, map[string]string{annotationTaints: batchAnnotations[annotationTaints]})
	a.show()
	a.expect(plain, 1, nil)
	a.show()
	a.expect(plain, 0, nil)

	// An annotation that a user removes is written again.
	a.expect(batch, 1, batchAnnotations)
	a.set(map[string]string{annotationTaints: ""})
	a.show()
	a.expect(batch, 1, batchAnnotations)
}

// The cluster autoscaler counts 110 Pods for a Node without the annotation, whatever its capacity is.
func TestAnnotateWritesAndRemovesTheMaximumOfPods(t *testing.T) {
	a := newAnnotated(t)
	a.maxPods = 17
	a.expect(plain, 1, map[string]string{annotationMaxPods: "17"})
	a.show()
	a.expect(plain, 0, map[string]string{annotationMaxPods: "17"})
	a.maxPods = 0
	a.expect(plain, 1, nil)

	// A maximum of a user stays.
	a.set(map[string]string{annotationMaxPods: "30"})
	a.show()
	a.maxPods = 17
	a.expect(plain, 1, map[string]string{annotationMaxPods: "30"})
}

func TestAnnotateKeepsAnnotationsOfOtherClients(t *testing.T) {
	a := newAnnotated(t)
	a.set(map[string]string{annotationTaints: "mine=:NoExecute"})
	a.show()
	both := map[string]string{annotationLabels: batchAnnotations[annotationLabels], annotationTaints: "mine=:NoExecute"}
	a.expect(batch, 2, both)
	a.show()
	for range 3 {
		a.expect(batch, 0, both)
	}
	// The user's annotation stays if no annotation is needed, and the other is removed.
	a.expect(plain, 1, map[string]string{annotationTaints: "mine=:NoExecute"})
	a.show()
	a.expect(plain, 0, map[string]string{annotationTaints: "mine=:NoExecute"})

	// With another value it is still the user's, after one request.
	a.expect(batch, 2, both)
	a.set(map[string]string{annotationTaints: "mine=:NoSchedule"})
	a.show()
	both[annotationTaints] = "mine=:NoSchedule"
	a.expect(batch, 1, both)
	a.expect(batch, 0, both)

	// Once the user removes it, it is written.
	a.set(map[string]string{annotationTaints: ""})
	a.show()
	a.expect(batch, 1, batchAnnotations)
}

func TestAnnotateKeepsLaterAnnotationsOfOtherClients(t *testing.T) {
	a := newAnnotated(t)
	a.expect(batch, 1, batchAnnotations)
	mine := map[string]string{annotationLabels: "tier=mine", annotationTaints: "mine=:NoExecute"}
	a.set(mine)
	// The cache is older than that.
	a.expect(batch, 1, mine)
	a.expect(batch, 0, mine)
	a.show()
	a.expect(batch, 1, mine)
	a.expect(batch, 0, mine)
}

// An annotation can change its owner.
func TestAnnotateDropsFormerOwners(t *testing.T) {
	a := newAnnotated(t)
	night := map[string]string{annotationLabels: "tier=night"}
	a.set(night)
	a.show()
	a.expect(&shard.NodeShape{Labels: batch.Labels}, 1, night)
	a.set(map[string]string{annotationLabels: ""})
	a.show()
	a.expect(&shard.NodeShape{Labels: shard.LabelsOf(map[string]string{"tier": "night"})}, 1, night)
	a.show()
	a.expect(batch, 1, batchAnnotations)
}

// A MachinePool that was created again with the same name has other owners.
func TestAnnotateDistinguishesMachinePoolsByUID(t *testing.T) {
	a := newAnnotated(t)
	mine := map[string]string{annotationLabels: "tier=mine"}
	a.set(mine)
	a.show()
	a.expect(&shard.NodeShape{Labels: batch.Labels}, 1, mine)

	former := a.cached
	recreated := former.DeepCopy()
	recreated.UID, recreated.ManagedFields = "another", nil
	delete(recreated.Annotations, annotationLabels)
	require.NoError(t, errors.Join(a.tracker.Delete(machinePoolResource, controllertest.Namespace, "workers"),
		a.tracker.Create(machinePoolResource, recreated, controllertest.Namespace, metav1.CreateOptions{FieldManager: "kubectl"})))
	a.cached = former
	if err := a.annotate(batch); !apierrors.IsConflict(err) {
		t.Errorf("annotating a MachinePool that is another one by now: got error %v", err)
	}
	a.show()
	a.expect(batch, 1, batchAnnotations)
}
