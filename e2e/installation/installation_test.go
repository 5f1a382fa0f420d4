// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestInstallation checks what is installed: shard servers that respond and create Nodes, rights
// that are not too wide, restricted Pods, a release that clusterctl installs over it, and the
// objects that are left without the operator.
func TestInstallation(t *testing.T) {
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	builder := controlplane.Builder{Root: root, Progress: os.Stderr}
	binaries, err := builder.ControlPlane(t.Context())
	require.NoError(t, err)
	operator, server, err := builder.Product(t.Context())
	require.NoError(t, err)
	testSize(t, server)
	cp, n := install(t, binaries, Options{
		Manifests: filepath.Join(root, "manifests"),
		Operator:  operator,
		Server:    server,
		Shards:    []Shard{{ID: "us-west-2a"}, {ID: "us-west-2b"}},
	})
	client := kubernetes.NewForConfigOrDie(cp.AdminConfig())
	t.Run("a shard server creates Nodes", func(t *testing.T) { testShardServer(t, n, client) })
	t.Run("the operator is no administrator", func(t *testing.T) { testRights(t, cp, n) })
	t.Run("the operator's Pods are restricted", func(t *testing.T) { testRestricted(t, n, client) })
	t.Run("clusterctl move moves all kinds", func(t *testing.T) { testMovable(t, cp) })
	clusterctl := newClusterctl(t, root, binaries)
	t.Run("the variables of a release are replaced", func(t *testing.T) { testVariables(t, clusterctl) })
	t.Run("clusterctl installs a release", func(t *testing.T) { testInit(t, cp, n, clusterctl) })
	t.Run("clusterctl creates and shows a pool", func(t *testing.T) { testPool(t, cp, clusterctl) })
	t.Run("a second operator", func(t *testing.T) { testSecond(t, cp, n) })
	t.Run("an uninstallation leaves the instances", func(t *testing.T) { testUninstall(t, cp, n, binaries, clusterctl) })
}

// maxServer is the size that the server must not exceed, stripped, in bytes. The linker keeps
// all methods of a client of a cloud that is stored in an interface: one such client may add
// 30 MiB.
const maxServer = 60 << 20

func testSize(t *testing.T, server string) {
	t.Helper()
	info, err := os.Stat(server)
	require.NoError(t, err)
	t.Logf("nstance-server has %.1f MiB", float64(info.Size())/(1<<20))
	assert.LessOrEqual(t, info.Size(), int64(maxServer), "size of nstance-server, in bytes")
}

func install(t *testing.T, binaries controlplane.Binaries, o Options) (*controlplane.ControlPlane, *Installation) {
	t.Helper()
	cp, err := controlplane.Start(t.Context(), controlplane.Options{Dir: t.TempDir(), Binaries: binaries})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, cp.Stop(context.Background()))
	})
	n, err := Install(t.Context(), cp, o)
	require.NoError(t, err)
	require.NoError(t, n.StartShards(t.Context()))
	return cp, n
}

func testShardServer(t *testing.T, n *Installation, client kubernetes.Interface) {
	connection, err := n.Dial("us-west-2b")
	require.NoError(t, err)
	defer connection.Close()
	_, err = nstancev1.NewOperatorServiceClient(connection).UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key:    "two",
		Config: &nstancev1.GroupConfig{Template: "worker", Size: 2},
	})
	require.NoError(t, err)
	err = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			ready := 0
			for _, node := range nodes.Items {
				for _, c := range node.Status.Conditions {
					if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && node.Spec.ProviderID != "" {
						ready++
					}
				}
			}
			return ready == 2, nil
		})
	assert.NoError(t, err, "waiting for two Nodes")
}

func testRights(t *testing.T, cp *controlplane.ControlPlane, n *Installation) {
	token, err := requestToken(t.Context(), n.client, n.namespace, serviceAccount)
	require.NoError(t, err)
	path, err := cp.KubeconfigWithToken("operator", token)
	require.NoError(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	operator := kubernetes.NewForConfigOrDie(config).CoreV1()
	// The operator lists and watches the objects that it reads, and has no right to get them.
	shards := metav1.ListOptions{FieldSelector: "metadata.name=nstance-shards"}
	if list, err := operator.ConfigMaps(Namespace).List(t.Context(), shards); err != nil || len(list.Items) != 1 {
		t.Errorf("the operator cannot read where the shards are: %v, %v", list, err)
	}
	if _, err := operator.Secrets("kube-system").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the operator lists the Secrets of kube-system: %v, want it forbidden", err)
	}
}

// testRestricted applies manifests/operator without the overlay: its namespace accepts only
// restricted Pods (https://kubernetes.io/docs/concepts/security/pod-security-standards/), and the
// Deployment's Pods are restricted.
func testRestricted(t *testing.T, n *Installation, client kubernetes.Interface) {
	require.NoError(t, n.Apply(t.Context(), filepath.Join(n.options.Manifests, "operator")))
	t.Cleanup(func() {
		assert.NoError(t, n.applyOperator(context.WithoutCancel(t.Context()), overlay))
	})
	selector := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=nstance-operator"}
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods(Namespace).List(ctx, selector)
		return err == nil && len(pods.Items) == 2, err
	})
	require.NoError(t, err, "waiting for two Pods")

	unrestricted := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "unrestricted"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	_, err = client.CoreV1().Pods(Namespace).Create(t.Context(), unrestricted, metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "a Pod that may run as root: %v", err)
}

const (
	secondTenant    = "team"
	secondNamespace = "nstance-team"
)

// testSecond installs a second operator, which has policies of its own.
func testSecond(t *testing.T, cp *controlplane.ControlPlane, n *Installation) {
	_, err := n.InstallSecond(t.Context(), secondNamespace, secondTenant)
	require.NoError(t, err)
	expectLimits(t, cp, map[string]string{Namespace: "nstance-operator-replicas", secondNamespace: "nstance-operator-team-replicas"})
}

// expectLimits fails unless the policy for each namespace rejects too many replicas.
func expectLimits(t *testing.T, cp *controlplane.ControlPlane, policies map[string]string) {
	t.Helper()
	client, err := capi.NewForConfig(cp.AdminConfig())
	require.NoError(t, err)
	for namespace, policy := range policies {
		machinePool := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Name: "large", Namespace: namespace}}
		machinePool.Spec.ClusterName, machinePool.Spec.Replicas = "any", ptr.To[int32](10001)
		template := &machinePool.Spec.Template.Spec
		template.ClusterName, template.Bootstrap.DataSecretName = "any", ptr.To("")
		template.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: "large"}
		until(t, "the policy for "+namespace+" holds", func(ctx context.Context) error {
			_, err := client.MachinePools(namespace).Create(ctx, machinePool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil || !strings.Contains(err.Error(), "'"+policy+"' with binding '"+policy+"'") {
				return fmt.Errorf("got %w, want it rejected by %s", cmp.Or(err, errors.New("no error")), policy)
			}
			return nil
		})
	}
}
