// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

const (
	clustersPath     = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/clusters"
	machinePoolsPath = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinepools"
)

// serve returns a client of a server with handler, which runs until the end of the test.
func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	return client
}

func answer(t *testing.T, w http.ResponseWriter, code int, body any) {
	t.Helper()
	sendHeader(w, code)
	send(t, w, body)
}

// sendHeader sends the header of a response.
func sendHeader(w http.ResponseWriter, code int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
}

// send sends a body or an event of a watch.
func send(t *testing.T, w http.ResponseWriter, body any) {
	t.Helper()
	assert.NoError(t, json.NewEncoder(w).Encode(body))
	if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
}

func machinePool(name, version string, replicas int32) *clusterv1.MachinePool {
	return &clusterv1.MachinePool{
		TypeMeta:   metav1.TypeMeta{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "MachinePool"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: version},
		Spec:       clusterv1.MachinePoolSpec{ClusterName: "prod", Replicas: &replicas},
	}
}

func TestCreate(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != machinePoolsPath || r.URL.Query().Get("fieldManager") != "test" {
			t.Errorf("got %s %s", r.Method, r.URL)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for _, part := range []string{`"kind":"MachinePool"`, `"apiVersion":"cluster.x-k8s.io/v1beta2"`, `"replicas":0`, `"name":"workers"`} {
			if !strings.Contains(string(body), part) {
				t.Errorf("%s is not in %s", part, body)
			}
		}
		answer(t, w, http.StatusCreated, machinePool("workers", "7", 0))
	})
	created, err := client.MachinePools("default").Create(t.Context(), &clusterv1.MachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: "workers"}, Spec: clusterv1.MachinePoolSpec{Replicas: ptr.To[int32](0)},
	}, metav1.CreateOptions{FieldManager: "test"})
	require.NoError(t, err)
	if created.Name != "workers" || created.ResourceVersion != "7" {
		t.Errorf("got %+v", created.ObjectMeta)
	}
}

func TestErrorsOfTheAPIServerAreReturned(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		status := apierrors.NewAlreadyExists(clusterv1.GroupVersion.WithResource("clusters").GroupResource(), "prod").Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer(t, w, int(status.Code), status)
	})
	_, err := client.Clusters("default").Create(t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "prod"}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Errorf("got error %v", err)
	}
}

func TestListAndGet(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		cluster := clusterv1.Cluster{
			TypeMeta:   metav1.TypeMeta{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster"},
			ObjectMeta: metav1.ObjectMeta{Name: "prod"}, Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)},
		}
		switch r.URL.Path {
		case clustersPath:
			if got := r.URL.Query().Get("labelSelector"); got != "a=b" {
				t.Errorf("the selector is %q", got)
			}
			answer(t, w, http.StatusOK, clusterv1.ClusterList{
				TypeMeta: metav1.TypeMeta{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "ClusterList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []clusterv1.Cluster{cluster},
			})
		case clustersPath + "/prod":
			answer(t, w, http.StatusOK, cluster)
		default:
			t.Errorf("got %s %s", r.Method, r.URL)
		}
	})
	list, err := client.Clusters("default").List(t.Context(), metav1.ListOptions{LabelSelector: "a=b"})
	if err != nil || list.ResourceVersion != "9" || len(list.Items) != 1 || list.Items[0].Name != "prod" {
		t.Errorf("got %+v, error %v", list, err)
	}
	cluster, err := client.Clusters("default").Get(t.Context(), "prod", metav1.GetOptions{})
	if err != nil || !ptr.Deref(cluster.Spec.Paused, false) {
		t.Errorf("got %+v, error %v", cluster, err)
	}
}

func TestWatch(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != machinePoolsPath || r.URL.Query().Get("watch") != "true" {
			t.Errorf("got %s %s", r.Method, r.URL)
		}
		answer(t, w, http.StatusOK, event("MODIFIED", machinePool("workers", "8", 5)))
		<-r.Context().Done()
	})
	watching, err := client.MachinePools("default").Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer watching.Stop()
	got := <-watching.ResultChan()
	if object, ok := got.Object.(*clusterv1.MachinePool); got.Type != watch.Modified || !ok || *object.Spec.Replicas != 5 {
		t.Errorf("got %+v", got)
	}
}

func event(kind string, object any) map[string]any {
	return map[string]any{"type": kind, "object": object}
}

func TestNewForConfigDoesNotChangeTheConfiguration(t *testing.T) {
	config := &rest.Config{Host: "http://localhost"}
	_, err := NewForConfig(config)
	require.NoError(t, err)
	if config.APIPath != "" || config.GroupVersion != nil || config.UserAgent != "" {
		t.Errorf("it is %+v now", config)
	}
}

// Since Kubernetes 1.32 API servers send the initial objects in the watch; older API
// servers only support lists
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#streaming-lists).
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
