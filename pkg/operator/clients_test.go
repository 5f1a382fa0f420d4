// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/controller/election"
	"nstance.dev/operator/pkg/testing/runtest"
)

// apiServer is an API server without objects that records which resources are requested.
type apiServer struct {
	*httptest.Server
	// stopped is closed before the server: a watch that is opened afterwards ends at once.
	stopped chan struct{}

	mu        sync.Mutex
	requested sets.Set[string]
	// version is the resource version of lists.
	version string
	// tokens are the tokens of the requests.
	tokens sets.Set[string]
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{stopped: make(chan struct{}), requested: sets.New[string](), tokens: sets.New[string](), version: "5"}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		close(s.stopped)
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	resource := resourceOf(r.URL.Path)
	s.mu.Lock()
	s.requested.Insert(resource)
	s.tokens.Insert(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	listed := s.version
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch query := r.URL.Query(); {
	case r.Method != http.MethodGet:
		w.WriteHeader(http.StatusConflict)
	case query.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		})
	case query.Get("watch") != "":
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-s.stopped:
		}
	default:
		kind, version := kindOf(resource)+"List", versionOf(r.URL.Path)
		if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") {
			kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": kind, "apiVersion": version, "metadata": map[string]any{"resourceVersion": listed}, "items": []any{},
		})
	}
}

// kindOf returns the kind of a resource.
func kindOf(resource string) string {
	if kind := kinds[resource]; kind != "" {
		return kind
	}
	return map[string]string{
		"pods": "Pod", "configmaps": "ConfigMap", "secrets": "Secret", "nstanceclusters": "NstanceCluster", "nstancemachinetemplates": "NstanceMachineTemplate",
		"validatingwebhookconfigurations": "ValidatingWebhookConfiguration",
	}[resource]
}

// versionOf returns the API version of a path.
func versionOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "apis" {
		return parts[1] + "/" + parts[2]
	}
	return parts[1]
}

// resourceOf returns the resource of a path such as /api/v1/namespaces/default/pods.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "apis" {
		parts = parts[1:]
	}
	parts = parts[2:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	return parts[0]
}

// resources returns the requested resources.
func (s *apiServer) resources() sets.Set[string] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requested.Clone()
}

// kubeconfig writes a kubeconfig file for the server, with the token in another file.
func (s *apiServer) kubeconfig(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("first"), 0o600))
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{
		Server:                   s.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{TokenFile: "token"}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(dir, "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, path))
	return path
}

// clusterOf returns clients and informers of options. The kubeconfig is management's.
func clusterOf(t *testing.T, management *apiServer, options *Options) (*clients, *informers) {
	t.Helper()
	options.Kubeconfig = management.kubeconfig(t)
	clients, err := newClients(options)
	require.NoError(t, err)
	informers, err := newInformers(clients, options)
	require.NoError(t, err)
	return clients, informers
}

// ofNodes are the resources of the cluster with the Nodes.
var ofNodes = sets.New("nodes", "pods", "volumeattachments")

// With a workload cluster the operator reads its Nodes and Pods, and never the Nodes and Pods
// of its own cluster.
func TestNodesAndPodsAreThoseOfTheWorkloadCluster(t *testing.T) {
	management, workload := newAPIServer(t), newAPIServer(t)
	options := complete()
	options.CAPIEndpoint, options.WorkloadKubeconfig = "https://workload:6443", workload.kubeconfig(t)
	clients, informers := clusterOf(t, management, options)
	informers.Nstance.NstanceMachines().Informer()
	informers.run(t.Context())
	for _, informer := range []cache.SharedIndexInformer{
		informers.Nodes, informers.Pods, informers.VolumeAttachments, informers.Machines, informers.Nstance.NstanceMachines().Informer(), informers.shards,
	} {
		runtest.Eventually(t, "the caches are complete", informer.HasSynced)
	}
	_, err := clients.workload.Kube.CoreV1().Pods("team").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, management.resources().Intersection(ofNodes), "requested from the management cluster")
	assert.ElementsMatch(t, ofNodes.UnsortedList(), workload.resources().UnsortedList(), "requested from the workload cluster")
	assert.Equal(t, []string{"first"}, workload.tokens.UnsortedList())
	for _, kind := range cachedKinds(clients, informers, options.Namespace) {
		assert.NotEqual(t, "Nodes", kind.Name, "a leader must start without the workload cluster")
	}
	_, err = clients.workload.Kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{}, metav1.CreateOptions{})
	assert.ErrorContains(t, err, "lease", "a write without the lease")
}

// Events about Nodes and Pods are recorded in their cluster, other events in the operator's.
func TestEventsAreInTheClusterOfTheirObjects(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "1"}}
	pod := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "2"},
	}
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: "nstance-system", Name: "workers", UID: "3"}}
	for name, test := range map[string]struct {
		object   runtime.Object
		workload bool
	}{
		"a Node": {node, true}, "a Pod": {&corev1.Pod{ObjectMeta: pod.ObjectMeta}, true}, "a Pod without its spec": {pod, true}, "a pool": {pool, false},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := &recorder{}, &recorder{}
			controller.Warn(&eventRouter{EventRecorder: ours, workload: theirs}, test.object, "Reason", "Action", "note")
			if got, want := [2]int{ours.count, theirs.count}, map[bool][2]int{false: {1, 0}, true: {0, 1}}[test.workload]; got != want {
				t.Errorf("recorded %v in the two clusters, want %v", got, want)
			}
		})
	}
}

type recorder struct{ count int }

func (r *recorder) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) { r.count++ }

// The operator starts while the workload cluster is not reachable: pools are scaled, and work
// that needs Nodes and Pods waits.
func TestStartWithoutTheWorkloadCluster(t *testing.T) {
	management, workload := newAPIServer(t), newAPIServer(t)
	options := complete()
	options.CAPIEndpoint, options.WorkloadKubeconfig = "https://workload:6443", workload.kubeconfig(t)
	workload.Close()
	clients, informers := clusterOf(t, management, options)
	components, err := newComponents(t.Context(), options, clients, informers, &recorder{}, "uid", prometheus.NewRegistry())
	require.NoError(t, err)
	informers.run(t.Context())
	for _, checker := range components.synced {
		runtest.Eventually(t, checker.Name()+" is complete", func() bool { return cache.IsDone(checker) })
	}
	for name, informer := range map[string]cache.SharedIndexInformer{
		"Nodes": informers.Nodes, "Pods": informers.Pods, "VolumeAttachments": informers.VolumeAttachments,
	} {
		assert.False(t, informer.HasSynced(), "the cache of %s is complete", name)
	}
}

// A leader must not act on Nodes of a workload cluster that was restored, and must not wait
// for a workload cluster that is not reachable.
func TestLeaderWithARestoredWorkloadCluster(t *testing.T) {
	management, workload := newAPIServer(t), newAPIServer(t)
	options := complete()
	options.CAPIEndpoint, options.WorkloadKubeconfig = "https://workload:6443", workload.kubeconfig(t)
	clients, informers := clusterOf(t, management, options)
	require.NoError(t, checkWorkloadNotRestored(t.Context(), clients, informers), "before the Nodes are known")
	informers.run(t.Context())
	runtest.Eventually(t, "the cache of Nodes is complete", informers.Nodes.HasSynced)
	require.NoError(t, checkWorkloadNotRestored(t.Context(), clients, informers))
	workload.mu.Lock()
	workload.version = "4"
	workload.mu.Unlock()
	require.ErrorIs(t, checkWorkloadNotRestored(t.Context(), clients, informers), election.ErrRestored)
	workload.CloseClientConnections()
	workload.Close()
	require.NoError(t, checkWorkloadNotRestored(t.Context(), clients, informers), "not reachable")
}

// An external cluster whose kubeconfig is not set has Nodes that the operator cannot see. The
// operator must not read the Nodes of its own cluster instead.
func TestExternalClusterWithoutKubeconfig(t *testing.T) {
	management := newAPIServer(t)
	options := complete()
	options.CAPIEndpoint = "https://workload:6443"
	clients, informers := clusterOf(t, management, options)
	informers.run(t.Context())
	runtest.Eventually(t, "the cache of Machines is complete", informers.Machines.HasSynced)
	_, err := clients.workload.Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	assert.ErrorContains(t, err, "--workload-kubeconfig")
	assert.Empty(t, management.resources().Intersection(ofNodes), "requested from the management cluster")
	assert.False(t, informers.Nodes.HasSynced() || informers.Pods.HasSynced())
}

// Within a single cluster there is one client configuration, and the operator waits for all
// caches.
func TestOneClusterHasItsNodesAndPods(t *testing.T) {
	management := newAPIServer(t)
	options := complete()
	clients, informers := clusterOf(t, management, options)
	informers.run(t.Context())
	for _, informer := range []cache.SharedIndexInformer{informers.Nodes, informers.Pods, informers.VolumeAttachments} {
		runtest.Eventually(t, "the caches are complete", informer.HasSynced)
	}
	assert.Empty(t, ofNodes.Difference(management.resources()), "not requested")
	assert.Same(t, clients.kube, clients.workload.Kube)
	waiting, err := informers.Nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{})
	require.NoError(t, err)
	assert.IsNotType(t, backgroundRegistration{}, waiting)
}

// TestKubernetesClusterIsReadAgain: reading is retried until the API server responds.
func TestKubernetesClusterIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "cluster-1"}})
		failures := 3
		client.PrependReactor("get", "namespaces", func(kubetesting.Action) (bool, runtime.Object, error) {
			failures--
			return failures >= 0, nil, errors.New("connection refused")
		})
		uid, err := kubernetesCluster(t.Context(), client)
		require.NoError(t, err)
		assert.Equal(t, "cluster-1", uid)
		assert.Len(t, client.Actions(), 4)
	})
}

func TestKubernetesClusterMustBeReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("get", "namespaces", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("namespaces"), "kube-system", errors.New("no rule"))
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := kubernetesCluster(ctx, client)
		assert.ErrorContains(t, err, "read the UID of the namespace kube-system")
		assert.True(t, apierrors.IsForbidden(err))
		assert.Len(t, client.Actions(), 1)
	})
}

// authorization is a transport that keeps the credentials of the last request.
type authorization struct{ header string }

func (a *authorization) RoundTrip(r *http.Request) (*http.Response, error) {
	a.header = r.Header.Get("Authorization")
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// Tokens for a workload cluster expire. The kubelet replaces the file when the Secret changes, and
// the operator uses the new token without a restart.
func TestNewTokenOfTheWorkloadClusterIsUsed(t *testing.T) {
	options := complete()
	options.WorkloadKubeconfig = newAPIServer(t).kubeconfig(t)
	token := filepath.Join(filepath.Dir(options.WorkloadKubeconfig), "token")
	synctest.Test(t, func(t *testing.T) {
		config, err := workloadConfig(options)
		require.NoError(t, err)
		requests := &authorization{}
		transport, err := rest.HTTPWrappersForConfig(config, requests)
		require.NoError(t, err)
		send := func() string {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host, http.NoBody)
			require.NoError(t, err)
			response, err := transport.RoundTrip(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			return requests.header
		}
		assert.Equal(t, "Bearer first", send())
		require.NoError(t, os.WriteFile(token, []byte("second"), 0o600))
		time.Sleep(time.Minute)
		assert.Equal(t, "Bearer second", send())
	})
}
