// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"testing"

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
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

var machinePoolResource = clusterv1.GroupVersion.WithResource("machinepools")

// annotated is a controller's annotate, and a MachinePool on an API server that
// keeps record of who owns which field as a real one does.
type annotated struct {
	t          *testing.T
	tracker    clienttesting.ObjectTracker
	controller *Controller
	// cached is what the controller's cache shows.
	cached *clusterv1.MachinePool
	// requests counts the applies that arrived.
	requests int
}

func newAnnotated(t *testing.T) *annotated {
	scheme := runtime.NewScheme()
	if err := clusterv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	a := &annotated{t: t, tracker: clienttesting.NewFieldManagedObjectTracker(scheme,
		serializer.NewCodecFactory(scheme).UniversalDecoder(), managedfields.NewDeducedTypeConverter())}
	client, err := capi.NewForConfig(&rest.Config{Host: "http://capi.test", Transport: a})
	if err != nil {
		t.Fatal(err)
	}
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	// A cache that has synced knows how new it is, empty or not.
	if err := store.Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	a.controller = &Controller{capi: client, machinePoolWrites: controller.NewWrites(store)}
	made := machinePool("workers", ptr.To[int32](3))
	made.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"}
	made.Annotations = map[string]string{"example.com/team": "shop"}
	if err := a.tracker.Create(machinePoolResource, made, namespace, metav1.CreateOptions{FieldManager: "kubectl"}); err != nil {
		t.Fatal(err)
	}
	a.show()
	return a
}

func (a *annotated) live() *clusterv1.MachinePool {
	a.t.Helper()
	object, err := a.tracker.Get(machinePoolResource, namespace, "workers")
	if err != nil {
		a.t.Fatal(err)
	}
	return object.(*clusterv1.MachinePool)
}

// show has the cache show what there is.
func (a *annotated) show() { a.cached = a.live() }

// set changes the annotations of the MachinePool as a user would; "" removes one.
func (a *annotated) set(annotations map[string]string) {
	a.t.Helper()
	changed := a.live().DeepCopy()
	for key, value := range annotations {
		changed.Annotations[key] = value
		if value == "" {
			delete(changed.Annotations, key)
		}
	}
	if err := a.tracker.Update(machinePoolResource, changed, namespace, metav1.UpdateOptions{FieldManager: "kubectl-annotate"}); err != nil {
		a.t.Fatal(err)
	}
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
		query.Get("fieldManager") != controller.FieldManager || query.Get("force") != "false" {
		return nil, fmt.Errorf("unexpected request %s %s", request.Method, request.URL)
	}
	code, answer := http.StatusOK, any(nil)
	var refused *apierrors.StatusError
	switch err := a.apply(applied); {
	case errors.As(err, &refused):
		status := refused.Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		code, answer = int(status.Code), status
	case err != nil:
		return nil, err
	default:
		written := a.live().DeepCopy()
		written.ResourceVersion = "2"
		answer = written
	}
	if body, err = json.Marshal(answer); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: request}, nil
}

func (a *annotated) apply(applied *unstructured.Unstructured) error {
	if applied.GetUID() != a.live().UID {
		return apierrors.NewConflict(machinePoolResource.GroupResource(), "workers", errors.New("the uid is another one"))
	}
	return a.tracker.Apply(machinePoolResource, applied, namespace, metav1.PatchOptions{FieldManager: controller.FieldManager})
}

// expect annotates with what shape tells, and compares how many requests that
// took, and which annotations there are then beside the user's own.
func (a *annotated) expect(shape *shard.NodeShape, requests int, want map[string]string) {
	a.t.Helper()
	a.requests = 0
	if err := a.annotate(shape); err != nil {
		a.t.Error(err)
	}
	if a.requests != requests {
		a.t.Errorf("made %d requests, want %d", a.requests, requests)
	}
	got := maps.Clone(a.live().Annotations)
	if got["example.com/team"] != "shop" {
		a.t.Error("took the user's own annotation away")
	}
	delete(got, "example.com/team")
	if !maps.Equal(got, want) {
		a.t.Errorf("the annotations are %q, want %q", got, want)
	}
}

func (a *annotated) annotate(shape *shard.NodeShape) error {
	ctx := klog.NewContext(a.t.Context(), ktesting.NewLogger(a.t, ktesting.NewConfig()))
	return a.controller.annotate(ctx, a.cached, shape)
}

// batch and plain are shapes with and without something to tell.
var (
	batch = &shard.NodeShape{Labels: map[string]string{"tier": "batch"}, Taints: []shard.Taint{{Key: "batch", Value: "yes", Effect: "NoSchedule"}}}
	plain = &shard.NodeShape{Architecture: "amd64"}
	// batchTold are the annotations of batch.
	batchTold = map[string]string{annotationLabels: "tier=batch", annotationTaints: "batch=yes:NoSchedule"}
)

func TestAnnotateTellsOnceAndTakesBack(t *testing.T) {
	a := newAnnotated(t)
	a.expect(nil, 0, nil)
	a.expect(plain, 0, nil)
	a.expect(batch, 1, batchTold)
	if a.controller.machinePoolWrites.Seen(cache.NewObjectName(namespace, "workers")) {
		t.Error("the next sync would not wait for the cache to show what was written")
	}
	a.show()
	a.expect(batch, 0, batchTold)

	// Shards that no longer tell do not make it untrue.
	a.expect(nil, 0, batchTold)
	night := &shard.NodeShape{Labels: map[string]string{"tier": "night"}, Taints: batch.Taints}
	a.expect(night, 1, map[string]string{annotationLabels: "tier=night", annotationTaints: batchTold[annotationTaints]})
	a.show()
	a.expect(&shard.NodeShape{Taints: batch.Taints}, 1, map[string]string{annotationTaints: batchTold[annotationTaints]})
	a.show()
	a.expect(plain, 1, nil)
	a.show()
	a.expect(plain, 0, nil)

	// What somebody took away comes back.
	a.expect(batch, 1, batchTold)
	a.set(map[string]string{annotationTaints: ""})
	a.show()
	a.expect(batch, 1, batchTold)
}

func TestAnnotateLeavesWhatSomebodyElseHasSet(t *testing.T) {
	a := newAnnotated(t)
	a.set(map[string]string{annotationTaints: "mine=:NoExecute"})
	a.show()
	both := map[string]string{annotationLabels: batchTold[annotationLabels], annotationTaints: "mine=:NoExecute"}
	a.expect(batch, 2, both)
	a.show()
	for range 3 {
		a.expect(batch, 0, both)
	}
	// His stays when there is nothing to tell, and the other goes.
	a.expect(plain, 1, map[string]string{annotationTaints: "mine=:NoExecute"})
	a.show()
	a.expect(plain, 0, map[string]string{annotationTaints: "mine=:NoExecute"})

	// With another value it is still his, after one question.
	a.expect(batch, 2, both)
	a.set(map[string]string{annotationTaints: "mine=:NoSchedule"})
	a.show()
	both[annotationTaints] = "mine=:NoSchedule"
	a.expect(batch, 1, both)
	a.expect(batch, 0, both)

	// Without it, it is ours to set.
	a.set(map[string]string{annotationTaints: ""})
	a.show()
	a.expect(batch, 1, batchTold)
}

func TestAnnotateLeavesWhatSomebodyElseSetsLater(t *testing.T) {
	a := newAnnotated(t)
	a.expect(batch, 1, batchTold)
	mine := map[string]string{annotationLabels: "tier=mine", annotationTaints: "mine=:NoExecute"}
	a.set(mine)
	// The cache is older than that.
	a.expect(batch, 1, mine)
	a.expect(batch, 0, mine)
	a.show()
	a.expect(batch, 1, mine)
	a.expect(batch, 0, mine)
}

// What was somebody else's once is not for ever.
func TestAnnotateForgetsFormerOwners(t *testing.T) {
	a := newAnnotated(t)
	night := map[string]string{annotationLabels: "tier=night"}
	a.set(night)
	a.show()
	a.expect(&shard.NodeShape{Labels: batch.Labels}, 1, night)
	a.set(map[string]string{annotationLabels: ""})
	a.show()
	a.expect(&shard.NodeShape{Labels: map[string]string{"tier": "night"}}, 1, night)
	a.show()
	a.expect(batch, 1, batchTold)
}

// A MachinePool of the same name that was made anew is nobody's.
func TestAnnotateKnowsMachinePoolsApart(t *testing.T) {
	a := newAnnotated(t)
	mine := map[string]string{annotationLabels: "tier=mine"}
	a.set(mine)
	a.show()
	a.expect(&shard.NodeShape{Labels: batch.Labels}, 1, mine)

	former := a.cached
	anew := former.DeepCopy()
	anew.UID, anew.ManagedFields = "another", nil
	delete(anew.Annotations, annotationLabels)
	if err := errors.Join(a.tracker.Delete(machinePoolResource, namespace, "workers"),
		a.tracker.Create(machinePoolResource, anew, namespace, metav1.CreateOptions{FieldManager: "kubectl"})); err != nil {
		t.Fatal(err)
	}
	a.cached = former
	if err := a.annotate(batch); !apierrors.IsConflict(err) {
		t.Errorf("annotating a MachinePool that is another one by now: got error %v", err)
	}
	a.show()
	a.expect(batch, 1, batchTold)
}
