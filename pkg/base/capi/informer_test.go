// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Since Kubernetes 1.32 the API server sends the first objects in the watch; older ones
// support lists only.
func TestInformerSyncsAndReceivesChanges(t *testing.T) {
	for name, streams := range map[string]bool{"from a stream": true, "from a list": false} {
		t.Run(name, func(t *testing.T) {
			scaled := make(chan struct{})
			client := serve(t, func(w http.ResponseWriter, r *http.Request) {
				query := r.URL.Query()
				first := machinePool("workers", "7", 1)
				switch {
				case r.URL.Path != machinePoolsPath:
					t.Errorf("got %s %s", r.Method, r.URL)
				case query.Get("sendInitialEvents") == "true" && !streams:
					status := apierrors.NewInvalid(clusterv1.GroupVersion.WithKind("MachinePool").GroupKind(), "", nil).Status()
					answer(t, w, http.StatusUnprocessableEntity, status)
				case query.Get("watch") != "true":
					answer(t, w, http.StatusOK, clusterv1.MachinePoolList{
						TypeMeta: metav1.TypeMeta{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "MachinePoolList"},
						ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []clusterv1.MachinePool{*first},
					})
				default:
					sendHeader(w, http.StatusOK)
					if query.Get("sendInitialEvents") == "true" {
						send(t, w, event("ADDED", first))
						bookmark := machinePool("", "7", 0)
						bookmark.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
						send(t, w, event("BOOKMARK", bookmark))
					}
					<-scaled
					send(t, w, event("MODIFIED", machinePool("workers", "8", 5)))
					<-r.Context().Done()
				}
			})

			informer := NewMachinePoolInformer(client, "default", 0)
			replicas := make(chan int32, 10)
			record := func(obj any) { replicas <- *obj.(*clusterv1.MachinePool).Spec.Replicas }
			registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: record, UpdateFunc: func(_, obj any) { record(obj) },
			})
			require.NoError(t, err)
			go informer.RunWithContext(t.Context())
			if !cache.WaitFor(t.Context(), "machine pools", registration.HasSyncedChecker()) {
				t.Fatal("not synced")
			}
			if got := <-replicas; got != 1 {
				t.Errorf("the handler received %d replicas first", got)
			}
			pool, err := informer.Lister().Get("workers")
			if err != nil || *pool.Spec.Replicas != 1 {
				t.Errorf("got %+v, error %v", pool, err)
			}
			if _, err := informer.Lister().Get("another"); !apierrors.IsNotFound(err) {
				t.Errorf("got error %v", err)
			}
			close(scaled)
			if got := <-replicas; got != 5 {
				t.Errorf("the handler received %d replicas then", got)
			}
		})
	}
}

func TestListerIsLimitedToItsNamespace(t *testing.T) {
	client := serve(t, func(http.ResponseWriter, *http.Request) {})
	informer := NewClusterInformer(client, "default", 0)
	for _, namespace := range []string{"default", "other"} {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "in-" + namespace}}
		require.NoError(t, informer.GetIndexer().Add(cluster))
	}
	if _, err := informer.Lister().Get("in-default"); err != nil {
		t.Error(err)
	}
	if _, err := informer.Lister().Get("in-other"); !apierrors.IsNotFound(err) {
		t.Errorf("got error %v, want not found", err)
	}
}
