// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/controlplane"
)

// account is the name of the ServiceAccount of the server, and of its ClusterRole.
const account = "nstance-server"

// apiServer is an API server with its etcd. No controller runs: a Node is what the server
// makes of it.
type apiServer struct {
	*controlplane.ControlPlane
	client kubernetes.Interface
}

// startAPIServer runs an API server until the end of the test.
func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	binaries, err := controlplane.Builder{Root: root, Progress: os.Stderr}.ControlPlane(t.Context())
	require.NoError(t, err)
	cp, err := controlplane.Start(t.Context(), controlplane.Options{
		Dir: t.TempDir(), Binaries: binaries,
		Without: []string{controlplane.ControllerManager, controlplane.Scheduler, controlplane.CAPI, controlplane.KWOK},
		Exited:  func(c *controlplane.Component, state string) { t.Errorf("%s exited by itself: %s", c.Name, state) },
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the API server's log:\n%s", tail(cp.Component(controlplane.APIServer).LogPath(), 16<<10))
		}
		assert.NoError(t, cp.Stop(context.Background()))
	})
	client, err := kubernetes.NewForConfig(cp.AdminConfig())
	require.NoError(t, err)
	return &apiServer{ControlPlane: cp, client: client}
}

// serve serves the API through a tap, and returns the path of a kubeconfig with which a
// server reaches it there. Its user has the rights that docs/server.md#providers names, and no
// other.
func (a *apiServer) serve(t *testing.T, p *tap) (kubeconfig string) {
	t.Helper()
	upstream, err := url.Parse(a.Server())
	require.NoError(t, err)
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(a.AdminConfig()))
	require.NoError(t, err)
	p.wrap(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		Transport:     transport,
		FlushInterval: -1, // a watch's events must not wait
	})
	certificate, err := a.ServingCertificate("tap")
	require.NoError(t, err)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(loopback, "0"))
	require.NoError(t, err)
	proxy := &http.Server{
		Handler: p, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13},
	}
	go func() { _ = proxy.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { assert.NoError(t, proxy.Close()) })
	token, err := a.MintToken(a.createAccount(t), 24*time.Hour)
	require.NoError(t, err)
	kubeconfig, err = a.KubeconfigThrough("https://"+listener.Addr().String(), account, token)
	require.NoError(t, err)
	return kubeconfig
}

// createAccount creates the ServiceAccount of the server with its rights.
func (a *apiServer) createAccount(t *testing.T) *corev1.ServiceAccount {
	t.Helper()
	const namespace = metav1.NamespaceSystem
	created, err := a.client.CoreV1().ServiceAccounts(namespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = a.client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{corev1.GroupName}, Resources: []string{"nodes"}, Verbs: []string{"create", "delete", "get", "list", "watch"},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = a.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// nodes returns the names of all Nodes, in order.
func (a *apiServer) nodes(t *testing.T) []string {
	t.Helper()
	list, err := a.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, node := range list.Items {
		names = append(names, node.Name)
	}
	return names
}

// everCreated returns how many Nodes of each name were ever created, as the audit log has it.
func (a *apiServer) everCreated(t *testing.T) map[string]int {
	t.Helper()
	writes, err := a.AuditLog().Writes(0, func(w controlplane.Write) bool {
		return w.Action() == "create nodes" && w.Code == http.StatusCreated
	})
	require.NoError(t, err)
	counts := map[string]int{}
	for _, write := range writes {
		counts[write.Name]++
	}
	return counts
}
