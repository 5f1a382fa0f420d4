// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/testing/runtest"
)

// follow runs an informer of Pods. The returned function returns the changes since its last
// call, in order.
func follow(t *testing.T, api *apiServer) (cache.SharedIndexInformer, func() []string) {
	t.Helper()
	client, err := metadata.NewForConfig(api.config())
	require.NoError(t, err)
	informer := NewPodInformer(client, clusterName, 0)
	var changes []string
	_, err = informer.AddEventHandler(controller.OnChange(func(before, after *metav1.PartialObjectMetadata) {
		switch {
		case before == nil:
			changes = append(changes, "+"+after.Name)
		case after == nil:
			changes = append(changes, "-"+before.Name)
		default:
			changes = append(changes, "~"+after.Name)
		}
	}))
	require.NoError(t, err)
	runtest.Start(t, informer.RunWithContext)
	return informer, func() []string {
		synctest.Wait()
		got := changes
		changes = nil
		return got
	}
}

// eachWay runs test with a server whose watches begin with existing objects, and with a server
// that must be listed first.
func eachWay(t *testing.T, test func(*testing.T, *apiServer)) {
	for name, old := range map[string]bool{"streaming": false, "listing": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPIServer()
				api.oldWatches = old
				test(t, api)
			})
		})
	}
}

func expectChanges(t *testing.T, changes func() []string, want ...string) {
	t.Helper()
	assert.Equal(t, want, changes(), "got changes")
}

func TestInformerHasOnlyPodsThatRequestAMachineAndHaveNotFinished(t *testing.T) {
	eachWay(t, func(t *testing.T, api *apiServer) {
		api.putPod(plainPod("plain"))
		api.putPod(newPod("requesting", "gpu"))
		finished := newPod("finished", "gpu")
		finished.Status.Phase = corev1.PodSucceeded
		api.putPod(finished)
		informer, changes := follow(t, api)
		expectChanges(t, changes, "+requesting")
		if !informer.HasSynced() {
			t.Error("has not synced")
		}

		// Pods without a request cause no changes.
		api.putPod(plainPod("plain"))
		api.putPod(plainPod("another"))
		api.dropPod(plainPod("another"))
		expectChanges(t, changes)
		// Two Pods: the first has a request from the beginning, the second gets it later.
		api.putPod(newPod("late", "gpu"))
		api.putPod(newPod("plain", "gpu"))
		expectChanges(t, changes, "+late", "+plain")
		// Three Pods: the first loses its request, the second fails, the third is deleted.
		api.putPod(newPod("requesting", "cpu"))
		api.putPod(plainPod("plain"))
		expectChanges(t, changes, "~requesting", "-plain")
		late := newPod("late", "gpu")
		late.Status.Phase = corev1.PodFailed
		api.putPod(late)
		api.dropPod(newPod("requesting", "cpu"))
		expectChanges(t, changes, "-late", "-requesting")
		if left := informer.GetStore().ListKeys(); len(left) > 0 {
			t.Errorf("the cache has %q", left)
		}
		// A Pod that was removed may request a machine again.
		api.putPod(newPod("plain", "gpu"))
		expectChanges(t, changes, "+plain")
	})
}

func TestInformerKeepsLittleOfAPod(t *testing.T) {
	eachWay(t, func(t *testing.T, api *apiServer) {
		pod := newPod("requesting", "gpu")
		pod.Labels = map[string]string{"app": "x"}
		pod.Annotations[v1beta1.AnnotationOnDemandInstanceType] = "large"
		pod.Annotations["example.com/note"] = "nothing"
		pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		pod.OwnerReferences = []metav1.OwnerReference{{Name: "owner"}}
		pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		api.putPod(pod)
		informer, changes := follow(t, api)
		expectChanges(t, changes, "+requesting")
		cached, ok, err := informer.GetStore().GetByKey("team/requesting")
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		kept := cached.(*metav1.PartialObjectMetadata)
		if kept.Labels != nil || kept.ManagedFields != nil || kept.OwnerReferences != nil || len(kept.Annotations) != 2 {
			t.Errorf("keeps %+v", kept)
		}
		if kept.UID != pod.UID || kept.DeletionTimestamp == nil || kept.ResourceVersion == "" || kept.Kind != "Pod" || kept.APIVersion != "v1" ||
			kept.Annotations[v1beta1.AnnotationOnDemandGroup] != "gpu" || kept.Annotations[v1beta1.AnnotationOnDemandInstanceType] != "large" {
			t.Errorf("keeps %+v", kept)
		}
	})
}

func TestInformerSeesWhatItMissed(t *testing.T) {
	eachWay(t, func(t *testing.T, api *apiServer) {
		for _, name := range []string{"going", "quitting", "staying"} {
			api.putPod(newPod(name, "gpu"))
		}
		_, changes := follow(t, api)
		changes()

		// The watch is closed because its resource version is too old, and Pods change before
		// the next watch.
		api.mu.Lock()
		watchers := maps.Clone(api.watchers)
		clear(api.watchers)
		api.mu.Unlock()
		api.dropPod(newPod("going", "gpu"))
		api.putPod(plainPod("quitting"))
		api.putPod(newPod("coming", "gpu"))
		api.mu.Lock()
		api.watchers = watchers
		api.mu.Unlock()
		api.sendError(apierrors.NewResourceExpired("too old"))

		<-time.After(time.Minute)
		got := changes()
		slices.Sort(got)
		if want := []string{"+coming", "-going", "-quitting", "~staying"}; !slices.Equal(got, want) {
			t.Errorf("got changes %q, want %q", got, want)
		}
		// Pods of the new list can be removed by later events, and Pods that are not in it are
		// forgotten.
		api.putPod(plainPod("coming"))
		api.putPod(plainPod("staying"))
		api.putPod(plainPod("quitting"))
		api.putPod(plainPod("going"))
		expectChanges(t, changes, "-coming", "-staying")
	})
}

func TestInformerFollowsBookmarks(t *testing.T) {
	eachWay(t, func(t *testing.T, api *apiServer) {
		api.putPod(newPod("requesting", "gpu"))
		informer, changes := follow(t, api)
		expectChanges(t, changes, "+requesting")
		api.sendBookmark(7777)
		expectChanges(t, changes)
		if got := informer.LastSyncResourceVersion(); got != "7777" {
			t.Errorf("is at resource version %s", got)
		}
	})
}

func TestListIsReadInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		api.oldWatches = true
		// The list takes so long that it must start again once.
		api.expired = apierrors.NewResourceExpired("too late")
		for i := range 1201 {
			pod := plainPod("plain" + string(rune('a'+i%26)) + strings.Repeat("x", i/26))
			if i%400 == 0 {
				pod.Annotations[v1beta1.AnnotationOnDemandGroup] = "gpu"
			}
			api.putPod(pod)
		}
		informer, changes := follow(t, api)
		if got := changes(); len(got) != 4 || len(informer.GetStore().List()) != 4 {
			t.Errorf("got changes %q", got)
		}
		if len(api.lists) != 2+3 {
			t.Fatalf("listed with %q", api.lists)
		}
		for _, list := range api.lists {
			query, err := url.ParseQuery(list)
			if err != nil || query.Get("limit") != "500" || query.Get("resourceVersion") != "" || query.Get("fieldSelector") != "status.phase!=Succeeded,status.phase!=Failed" {
				t.Errorf("listed with %q, %v", list, err)
			}
		}
	})
}

// A reader that has stopped a watch does not receive its last events. The next watch must send
// them.
func TestWatchRepeatsWhatWasNotReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requesting := newRequestingPods(nil, clusterName)
		requesting.delivered(watch.Event{Type: watch.Added, Object: inCache(newPod("requesting", "gpu"))})
		source := watch.NewFake()
		watched := newFilteredWatch(source, requesting.filter, requesting.delivered)
		quitting := &metav1.PartialObjectMetadata{ObjectMeta: plainPod("requesting").ObjectMeta}
		source.Modify(quitting)
		synctest.Wait()
		watched.Stop()
		watched.Stop()
		synctest.Wait()
		if _, open := <-watched.ResultChan(); open {
			t.Error("an event came after the end")
		}

		source = watch.NewFake()
		watched = newFilteredWatch(source, requesting.filter, requesting.delivered)
		defer watched.Stop()
		source.Modify(quitting)
		if event := <-watched.ResultChan(); event.Type != watch.Deleted {
			t.Errorf("got %v", event)
		}
		synctest.Wait()
		if requesting.passed.Len() > 0 {
			t.Errorf("still has %v", requesting.passed)
		}
	})
}

// Several operators may run in a cluster. Each sees all Pods.
func TestRequestsMachine(t *testing.T) {
	for name, test := range map[string]struct {
		annotations map[string]string
		want        bool
	}{
		"no annotation": {},
		"a group":       {map[string]string{v1beta1.AnnotationOnDemandGroup: "workers"}, true},
		"this cluster": {map[string]string{
			v1beta1.AnnotationOnDemandGroup: "workers", v1beta1.AnnotationOnDemandCluster: clusterName}, true},
		"another cluster": {map[string]string{
			v1beta1.AnnotationOnDemandGroup: "workers", v1beta1.AnnotationOnDemandCluster: "prod--other"}, false},
		"no group": {map[string]string{v1beta1.AnnotationOnDemandCluster: clusterName}, false},
	} {
		pod := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Annotations: test.annotations}}
		if got := requestsMachine(pod, clusterName); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
