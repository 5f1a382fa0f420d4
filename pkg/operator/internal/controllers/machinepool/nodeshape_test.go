// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
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
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/controller/apitest"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

func TestNodeShape(t *testing.T) {
	type (
		shape  = shard.NodeShape
		values = map[string]string
	)
	taints := func(all ...string) (made []shard.Taint) {
		for _, each := range all {
			parts := strings.Split(each, " ")
			made = append(made, shard.Taint{Key: parts[0], Value: parts[1], Effect: parts[2]})
		}
		return made
	}
	whole := shape{
		Architecture: "amd64", OperatingSystem: "linux",
		Capacity: values{"cpu": "2", "memory": "8Gi"},
		Labels:   values{"tier": "batch", "zone": ""},
		Taints:   taints("batch yes NoSchedule"),
	}
	for name, test := range map[string]struct {
		shapes []*shape
		want   *shape
	}{
		"no shards":               {nil, nil},
		"no shard reports one":    {[]*shape{nil, nil}, nil},
		"one shard":               {[]*shape{&whole}, &whole},
		"one of two reports one":  {[]*shape{nil, &whole}, &whole},
		"two of a kind":           {[]*shape{&whole, &whole}, &whole},
		"one that knows nothing":  {[]*shape{{}}, &shape{}},
		"and one that knows all":  {[]*shape{{}, &whole}, &shape{Taints: whole.Taints}},
		"another architecture":    {[]*shape{{Architecture: "amd64", OperatingSystem: "linux"}, {Architecture: "arm64", OperatingSystem: "linux"}}, &shape{OperatingSystem: "linux"}},
		"another system":          {[]*shape{{Architecture: "amd64", OperatingSystem: "linux"}, {Architecture: "amd64", OperatingSystem: "windows"}}, &shape{Architecture: "amd64"}},
		"the last is another":     {[]*shape{{Architecture: "amd64"}, {Architecture: "amd64"}, {}}, &shape{}},
		"the smallest of each":    {[]*shape{{Capacity: values{"cpu": "2", "memory": "8Gi"}}, {Capacity: values{"cpu": "1500m", "memory": "9000Mi"}}}, &shape{Capacity: values{"cpu": "1500m", "memory": "8Gi"}}},
		"quantities, not texts":   {[]*shape{{Capacity: values{"cpu": "10"}}, {Capacity: values{"cpu": "9"}}}, &shape{Capacity: values{"cpu": "9"}}},
		"one lacks a resource":    {[]*shape{{Capacity: values{"cpu": "2", "nvidia.com/gpu": "1"}}, {Capacity: values{"cpu": "2"}}}, &shape{Capacity: values{"cpu": "2"}}},
		"the first lacks it":      {[]*shape{{Capacity: values{"cpu": "2"}}, {Capacity: values{"cpu": "2", "nvidia.com/gpu": "1"}}}, &shape{Capacity: values{"cpu": "2"}}},
		"nothing of it":           {[]*shape{{Capacity: values{"cpu": "2", "memory": "0"}}, {Capacity: values{"cpu": "2", "memory": "1Gi"}}}, &shape{Capacity: values{"cpu": "2", "memory": "0"}}},
		"no quantity":             {[]*shape{{Capacity: values{"cpu": "2", "memory": "plenty"}}, {Capacity: values{"cpu": "many", "memory": "1Gi"}}}, &shape{}},
		"a label differs":         {[]*shape{{Labels: values{"tier": "batch", "zone": "a"}}, {Labels: values{"tier": "batch", "zone": "b"}}}, &shape{Labels: values{"tier": "batch"}}},
		"a label is missing":      {[]*shape{{Labels: values{"tier": "batch", "empty": ""}}, {Labels: values{"tier": "batch"}}}, &shape{Labels: values{"tier": "batch"}}},
		"the first lacks a label": {[]*shape{{}, {Labels: values{"empty": ""}}}, &shape{}},
		"taints of all, by key": {[]*shape{{Taints: taints("z  NoExecute", "a 2 NoSchedule")}, {Taints: taints("a 1 NoSchedule", "z  NoExecute", "a 1 NoExecute")}},
			&shape{Taints: taints("a 1 NoExecute", "a 1 NoSchedule", "a 2 NoSchedule", "z  NoExecute")}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := commonShape(test.shapes); !got.Equal(test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// Shapes belong to the cache, and must not change.
func TestNodeShapeLeavesTheShapesAlone(t *testing.T) {
	taints := []shard.Taint{{Key: "z"}, {Key: "a"}}
	shapes := []*shard.NodeShape{nil, {Taints: taints[:1:2]}, {Taints: []shard.Taint{{Key: "b"}}}}
	commonShape(shapes)
	if shapes[0] != nil || !slices.Equal(taints, []shard.Taint{{Key: "z"}, {Key: "a"}}) {
		t.Errorf("left %+v and %+v", shapes, taints)
	}
}

func TestCapacityAndNodeInfoOfAShape(t *testing.T) {
	shape := &shard.NodeShape{Architecture: "arm64", OperatingSystem: "linux",
		Capacity: map[string]string{"cpu": "2", "memory": "8Gi", "ephemeral-storage": "plenty"}}
	want := corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("8Gi")}
	if got := capacityOf(shape); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got capacity %v, want %v", got, want)
	}
	if got := nodeInfoOf(shape); got != (v1beta1.NodeInfo{Architecture: "arm64", OperatingSystem: "linux"}) {
		t.Errorf("got %+v", got)
	}
	for _, nothing := range []*shard.NodeShape{nil, {}} {
		if capacity, info := capacityOf(nothing), nodeInfoOf(nothing); capacity != nil || info != (v1beta1.NodeInfo{}) {
			t.Errorf("of %+v came %v and %+v", nothing, capacity, info)
		}
	}
}

func TestNodeAnnotations(t *testing.T) {
	for name, test := range map[string]struct {
		shape          shard.NodeShape
		labels, taints string
	}{
		"nothing": {shard.NodeShape{Architecture: "arm64"}, "", ""},
		"labels by key": {shard.NodeShape{Labels: map[string]string{"zone": "a", "example.com/tier": "batch", "spot": ""}},
			"example.com/tier=batch,spot=,zone=a", ""},
		"taints": {shard.NodeShape{Taints: []shard.Taint{{Key: "a", Value: "1", Effect: "NoSchedule"}, {Key: "b", Effect: "NoExecute"}}},
			"", "a=1:NoSchedule,b=:NoExecute"},
	} {
		got := nodeAnnotations(&test.shape)
		if want := map[string]string{annotationLabels: test.labels, annotationTaints: test.taints}; !maps.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

var machinePoolResource = clusterv1.GroupVersion.WithResource("machinepools")

// annotated is a controller's annotate, and a MachinePool on an API server that
// records the managers of fields as a real one does.
type annotated struct {
	t          *testing.T
	tracker    clienttesting.ObjectTracker
	controller *Controller
	// cached is the MachinePool in the controller's cache.
	cached *clusterv1.MachinePool
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
	a.controller = &Controller{capi: client, machinePoolWrites: controller.NewWriteTracker(store)}
	made := machinePool("workers", ptr.To[int32](3))
	made.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"}
	made.Annotations = map[string]string{"example.com/team": "shop"}
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
	return a.controller.annotate(ctx, a.cached, shape)
}

// batch and plain are shapes with and without labels and taints.
var (
	batch = &shard.NodeShape{Labels: map[string]string{"tier": "batch"}, Taints: []shard.Taint{{Key: "batch", Value: "yes", Effect: "NoSchedule"}}}
	plain = &shard.NodeShape{Architecture: "amd64"}
	// batchAnnotations are the annotations for batch.
	batchAnnotations = map[string]string{annotationLabels: "tier=batch", annotationTaints: "batch=yes:NoSchedule"}
)

func TestAnnotateWritesOnceAndRemoves(t *testing.T) {
	a := newAnnotated(t)
	a.expect(nil, 0, nil)
	a.expect(plain, 0, nil)
	a.expect(batch, 1, batchAnnotations)
	if a.controller.machinePoolWrites.CaughtUp(cache.NewObjectName(controllertest.Namespace, "workers")) {
		t.Error("the next sync would not wait for the cache to show what was written")
	}
	a.show()
	a.expect(batch, 0, batchAnnotations)

	// Annotations stay while no shard reports a shape.
	a.expect(nil, 0, batchAnnotations)
	night := &shard.NodeShape{Labels: map[string]string{"tier": "night"}, Taints: batch.Taints}
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
	a.expect(&shard.NodeShape{Labels: map[string]string{"tier": "night"}}, 1, night)
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
