// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/testing/tier"
)

// The steps of a server in an API server.
const (
	createNode = "create the Node"
	readNode   = "read the Node"
	deleteNode = "delete the Node"
)

// nodeCalls are the calls of a server for Nodes.
type nodeCalls struct {
	records *recorded

	// mu guards early, the names of the Nodes whose creation was requested before there was a
	// record.
	mu    sync.Mutex
	early []string
}

// step returns the step of a request to an API server. The watch of all Nodes is no step: it does
// not end.
func (c *nodeCalls) step(r *http.Request) string {
	const all = "/api/v1/nodes"
	switch {
	case r.Method == http.MethodPost && r.URL.Path == all:
		c.create(r)
		return createNode
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, all+"/"):
		return readNode
	case r.Method == http.MethodDelete && strings.HasPrefix(r.URL.Path, all+"/"):
		return deleteNode
	default:
		return ""
	}
}

// create compares a request to create a Node with the records.
func (c *nodeCalls) create(r *http.Request) {
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return // the server was killed before it had sent the request
	}
	var node corev1.Node
	_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &node)
	id, invalid := puidv7.Parse(node.Name)
	if err == nil && invalid == nil && slices.Contains(c.records.list(), id.StorageKey()) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.early = append(c.early, node.Name)
}

// withoutRecord returns the names of the Nodes that were to be created without a record.
func (c *nodeCalls) withoutRecord() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.early)
}

// All steps from a larger size to an instance whose provider id is recorded, and from a smaller
// size to the end of an instance. A server reads a Node that the server before has deleted.
var (
	creationSteps = []string{storeGroups, createRecord, createNode, storeProviderID}
	deletionSteps = []string{storeGroups, deleteNode, readNode, removeRecord}
)

// randomKills is how often the server is killed at random steps before the group is compared
// with the Nodes.
const randomKills = 5

// TestServerIsKilledWithKwok kills the server before and after each step from a larger size to an
// instance whose provider id is recorded, again and again, then at the steps from a smaller size
// to the removal of the record, and then at random steps while the group grows and shrinks. Each
// instance that had a record has had one Node, or no Node if the instance was not needed any more
// before the server created it, and nothing is left.
func TestServerIsKilledWithKwok(t *testing.T) {
	k, records := new(killer), new(recorded)
	api, calls := startAPIServer(t), &nodeCalls{records: records}
	s := newServer(t, options{
		cluster: "e2e", provider: "kwok", instanceType: "m7i.large", subnet: "local", userdata: userdata,
		providerOptions: object{"kubeconfig": api.serve(t, &tap{killer: k, name: calls.step})},
		bindHost:        loopback, advertiseHost: loopback, drainTimeout: "0s",
	}, &tap{killer: k, name: records.step, done: records.done})
	k.kill = s.kill
	o := newOperator(s)

	kills := 0
	for range tier.Pick(2, 7) {
		kills += killAtEachStep(t, s, o, k, beforeAndAfter, creationSteps, 1)
	}
	s.start()
	ids := o.scale(kills)
	expectNodes(t, api, s, ids)
	assert.Equal(t, recordNames(t, ids), records.list(), "instances with a record, want those of the group: it has only grown")
	assert.ElementsMatch(t, ids, slices.Collect(maps.Keys(api.everCreated(t))), "instances that had a Node, want those of the group")

	s.kill()
	for range tier.Pick(1, 3) {
		kills += killAtEachStep(t, s, o, k, beforeAndAfter, deletionSteps, -1)
	}
	s.start()
	left := o.scale(lastSize)
	expectNodes(t, api, s, left)
	assert.Subset(t, ids, left, "the group has only shrunk")
	assert.Equal(t, recordNames(t, ids), records.list(), "instances with a record, want those from before")

	random := rand.New(rand.NewPCG(tier.Seeds(t, 1)[0], 0))
	// Without its cache, a server does not know which Nodes it has deleted. It leaves many
	// missing instances alone until an administrator confirms that they are lost.
	o.acceptsLosses = true
	// It counts instances as running until it has looked for their Nodes.
	o.running = func() []string { return api.nodes(t) }
	for round := range tier.Pick(2, 8) {
		s.kill()
		lost := random.IntN(randomKills)
		for n := range randomKills {
			if round%2 == 0 && n == lost {
				s.caches++ // the cache is lost
			}
			killAtStep(s, o, k, random, 12)
			kills++
		}
		s.start()
		expectNodes(t, api, s, o.scale(lastSize))
	}

	o.scale(0)
	expectNodes(t, api, s, nil)
	created := api.everCreated(t)
	t.Logf("%d kills; %d instances were recorded, %d had a Node; steps: %v", kills, len(records.list()), len(created), k.counts())
	assert.Subset(t, records.list(), recordNames(t, slices.Collect(maps.Keys(created))), "instances with a record, want all that had a Node")
	for id, count := range created {
		assert.Equal(t, 1, count, "Nodes that were created for instance %s", id)
	}
	assert.Empty(t, calls.withoutRecord(), "Nodes whose creation was requested before their record")
}

// expectNodes waits until exactly these instances have a Node, and a record.
func expectNodes(t *testing.T, api *apiServer, s *server, ids []string) {
	t.Helper()
	want := slices.Sorted(slices.Values(ids))
	eventually(t, "only the Nodes and the records of the group are left", func(context.Context) error {
		nodes, records := api.nodes(t), s.records() //nolint:contextcheck // They use the context of the test.
		if !slices.Equal(nodes, want) {
			return fmt.Errorf("the Nodes are %q, and the instances %q", nodes, want)
		}
		if !slices.Equal(records, recordNames(t, ids)) {
			return fmt.Errorf("the records are %q, want those of the instances %q", records, want)
		}
		return nil
	})
}

// account is the name of the ServiceAccount of the server, and of its ClusterRole.
const account = "nstance-server"

// apiServer is an API server with its etcd. No controller runs, so that only the server changes a
// Node.
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

// serve serves the API through a tap, and returns the path of a kubeconfig with which a server
// reaches it there. Its user has only the rights in docs/server-reference.md#providers.
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

// everCreated returns how many Nodes of each name were ever created, according to the audit log.
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
