// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// TestControlPlane starts every part once and looks at each from outside.
func TestControlPlane(t *testing.T) {
	cp := startWhole(t)
	client := kubernetes.NewForConfigOrDie(cp.AdminConfig())
	t.Run("audit log counts writes", func(t *testing.T) { testAudit(t, cp, client) })
	t.Run("Cluster API rejects an invalid Cluster", func(t *testing.T) { testCAPIWebhook(t, cp) })
	t.Run("kwok makes a Node Ready until it is deleted", func(t *testing.T) { testNode(t, client) })
	t.Run("a token of a ServiceAccount is its own user", func(t *testing.T) { testServiceAccount(t, cp, client) })
	t.Run("a killed component starts again", func(t *testing.T) { testRestart(t, cp) })
	t.Run("stop leaves no process", func(t *testing.T) { testStop(t, cp) })
}

func startWhole(t *testing.T) *ControlPlane {
	t.Helper()
	root, err := FindRoot(".")
	require.NoError(t, err)
	binaries, err := Builder{Root: root, Progress: os.Stderr}.ControlPlane(t.Context())
	require.NoError(t, err)
	begin := time.Now()
	cp, err := Start(t.Context(), Options{
		Dir:      t.TempDir(),
		Binaries: binaries,
		Exited: func(c *Component, state string) {
			t.Errorf("%s exited by itself: %s\n%s", c.Name, state, logTail(c.LogPath(), 0))
		},
	})
	require.NoError(t, err)
	t.Logf("the control plane was ready after %s", time.Since(begin).Round(time.Second/10))
	t.Cleanup(func() {
		assert.NoError(t, cp.Stop(context.Background()))
	})
	return cp
}

func testAudit(t *testing.T, cp *ControlPlane, client kubernetes.Interface) {
	from, err := cp.AuditLog().End()
	require.NoError(t, err)
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	created, err := maps.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "counted"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = maps.Get(t.Context(), created.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, maps.Delete(t.Context(), created.Name, metav1.DeleteOptions{}))

	writes, err := cp.AuditLog().Writes(from, func(w Write) bool { return w.User == "admin" })
	require.NoError(t, err)
	require.Len(t, writes, 2, "the writes of a create, a get and a delete")
	for i, verb := range []string{"create", "delete"} {
		w := writes[i]
		if w.Verb != verb || w.Resource != "configmaps" || w.Namespace != "default" || w.Name != "counted" {
			t.Errorf("write %d is %+v, want a %s of the config map", i, w, verb)
		}
	}
}

func testCAPIWebhook(t *testing.T, cp *ControlPlane) {
	clusters := dynamic.NewForConfigOrDie(cp.AdminConfig()).Resource(schema.GroupVersionResource{
		Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "clusters",
	}).Namespace(metav1.NamespaceDefault)
	// The Cluster has neither infrastructure nor control plane, which only the webhook rejects.
	_, err := clusters.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2",
		"kind":       "Cluster",
		"metadata":   map[string]any{"name": "empty"},
		"spec":       map[string]any{"paused": false},
	}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Fatalf("creating a Cluster without references: %v, want it forbidden", err)
	}
	if !strings.Contains(err.Error(), "infrastructureRef") {
		t.Errorf("the refusal does not name the missing field: %v", err)
	}
}

func testNode(t *testing.T, client kubernetes.Interface) {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("2"),
		corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	nodes := client.CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Spec:       corev1.NodeSpec{ProviderID: "kwok://node-1"},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			NodeInfo:    corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, "the Node to be Ready", func(ctx context.Context) (bool, error) {
		node, err := nodes.Get(ctx, "node-1", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		seen := map[corev1.NodeConditionType]corev1.ConditionStatus{}
		for _, c := range node.Status.Conditions {
			seen[c.Type] = c.Status
		}
		return seen[corev1.NodeReady] == corev1.ConditionTrue &&
			seen[corev1.NodeMemoryPressure] == corev1.ConditionFalse &&
			seen[corev1.NodeDiskPressure] == corev1.ConditionFalse &&
			seen[corev1.NodePIDPressure] == corev1.ConditionFalse &&
			node.Status.NodeInfo.KubeletVersion == "v1.36.3", nil
	})
	require.NoError(t, nodes.Delete(t.Context(), "node-1", metav1.DeleteOptions{}))
	if _, err := nodes.Get(t.Context(), "node-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the deleted Node is still there: %v", err)
	}
}

func testServiceAccount(t *testing.T, cp *ControlPlane, client kubernetes.Interface) {
	accounts := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	account, err := accounts.Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	request, err := accounts.CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	path, err := cp.KubeconfigWithToken("alice", request.Status.Token)
	require.NoError(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	from, err := cp.AuditLog().End()
	require.NoError(t, err)
	_, err = kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(metav1.NamespaceDefault).
		Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "forbidden"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a ServiceAccount without rights creates a config map: %v, want it forbidden", err)
	}
	writes, err := cp.AuditLog().Writes(from, func(w Write) bool {
		return w.User == "system:serviceaccount:default:alice"
	})
	require.NoError(t, err)
	if len(writes) != 1 || writes[0].Code != http.StatusForbidden {
		t.Errorf("the audit log has %+v, want the one forbidden create", writes)
	}
}

func testRestart(t *testing.T, cp *ControlPlane) {
	scheduler := cp.Component(Scheduler)
	before, running := scheduler.PID()
	require.True(t, running, "the scheduler does not run")
	require.NoError(t, scheduler.Kill(t.Context()))
	if pid, running := scheduler.PID(); running {
		t.Fatalf("the killed scheduler still runs as process %d", pid)
	}
	require.NoError(t, scheduler.Start(t.Context()))
	after, running := scheduler.PID()
	if !running || after == before {
		t.Errorf("the scheduler started again as process %d (running: %t), was %d", after, running, before)
	}
	if err := scheduler.Start(t.Context()); err == nil {
		t.Error("a running component was started a second time")
	}
}

func testStop(t *testing.T, cp *ControlPlane) {
	ids := map[string]processID{}
	for _, c := range cp.Components() {
		r, err := readRecord(cp.Dir(), c.Name)
		require.NoError(t, err)
		if !r.Process.running() {
			t.Errorf("%s does not run before the stop", c.Name)
		}
		ids[c.Name] = r.Process
	}
	assert.Len(t, ids, 6, "components on record")
	begin := time.Now()
	assert.NoError(t, cp.Stop(t.Context()))
	t.Logf("stopped in %s", time.Since(begin).Round(time.Second/10))
	for name, id := range ids {
		if id.running() {
			t.Errorf("%s still runs as process %d", name, id.PID)
		}
	}
	assert.NoError(t, CheckPorts(cp.ports.Uses()), "after the stop")
}

// eventually waits for a condition for as long as a busy machine may need.
func eventually(t *testing.T, what string, condition wait.ConditionWithContextFunc) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, condition)
	require.NoError(t, err, "waiting for %s", what)
}

func TestBusyPortIsRejected(t *testing.T) {
	listener, err := listen(0)
	require.NoError(t, err)
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port

	dir := t.TempDir()
	_, err = Start(t.Context(), Options{Dir: dir, Ports: Ports{APIServer: port}})
	want := "port " + strconv.Itoa(port) + ", wanted by kube-apiserver, is in use"
	if err == nil || err.Error() != want {
		t.Errorf("starting with a busy port: %v, want %q", err, want)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("a rejected start left %v (%v)", entries, err)
	}
}

func TestLeavingOutEtcdIsRejected(t *testing.T) {
	_, err := Start(t.Context(), Options{Dir: t.TempDir(), Without: []string{Etcd}})
	if err == nil || !strings.Contains(err.Error(), `"etcd"`) {
		t.Errorf("starting without etcd: %v, want an error that names it", err)
	}
}
