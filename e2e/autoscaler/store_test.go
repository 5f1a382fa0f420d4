// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/marekvsoperator"
	"nstance.dev/operator/e2e/marekvsstore"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	marekvsv1alpha1 "nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	marekvsclient "nstance.dev/operator/pkg/generated/clientset/versioned/typed/marekvs/v1alpha1"
)

// storeNamespace is the namespace of the store's Pods.
const storeNamespace = "store"

// The Pods of a store are on the Nodes of a pool, and the operator of the store runs too. If the
// autoscaler deletes two Nodes, the second is drained when the Pod of the first is ready
// elsewhere, and every partition has a copy on a running node all the time.
func TestNodesOfAStore(t *testing.T) {
	t.Parallel()
	const name = "stored"
	watchOperator(t)
	group := createPool(t, name, 6)
	untilRunning(t, name, 6)
	store, clusters := startStore(t)
	t.Cleanup(func() { deleteStore(t, store, clusters) })
	_, err := clusters.Create(t.Context(), &marekvsv1alpha1.MarekvsCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: marekvsv1alpha1.MarekvsClusterSpec{
			Image: "marekvs:1", Nodes: 4, ReplicationFactor: 2,
			NodeSelector: map[string]string{v1beta1.LabelGroup: name},
			Spread:       marekvsv1alpha1.Spread{Hostname: marekvsv1alpha1.HostnameSpread{WhenUnsatisfiable: corev1.DoNotSchedule}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	untilStoreHealthy(t, clusters, 4)
	store.Fill("db")

	// With every Node cordoned, the Pod that is evicted first stays without a Node.
	from := env.AuditEnd(t)
	nodes := nodesNamed(t, nodeOf(t, "db-0"), nodeOf(t, "db-1"))
	cordon(t, name, true)
	require.NoError(t, group.deleteNodes(t.Context(), nodes...))
	testcluster.Eventually(t, timeout, "one Pod is evicted and the eviction of the other one refused", func(ctx context.Context) error {
		evicted, stays := "db-0", "db-1"
		if podReady(ctx, evicted) {
			evicted, stays = stays, evicted
		}
		if podReady(ctx, evicted) || !podReady(ctx, stays) {
			return errors.New("the Pods are both ready, or both not")
		}
		if len(env.Requests(t, from, refusedEviction(stays))) == 0 {
			return fmt.Errorf("no eviction of %s was refused", stays)
		}
		return nil
	})
	cordon(t, name, false)
	untilMachinesDeleted(t, namesOfNodes(nodes)...)
	untilRunning(t, name, 4)
	untilStoreHealthy(t, clusters, 4)
	expectNodeChanges(t, from, name, 0, namesOfNodes(nodes)...)

	_, err = clusters.Patch(t.Context(), "db", types.MergePatchType, []byte(`{"spec":{"nodes":3}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	untilStoreHealthy(t, clusters, 3)
	assert.Equal(t, 1, store.MostTerminating("db"), "Pods that ended at once")
	assert.Equal(t, 1, store.FewestCopies("db"), "nodes that ran with a copy of each partition: one less than the copies while a Pod was away")
}

// refusedEviction matches evictions of a Pod that the budget of the store does not allow.
func refusedEviction(pod string) testcluster.Match {
	return func(r controlplane.Request) bool {
		return r.Namespace == storeNamespace && r.Name == pod && r.Subresource == "eviction" && r.Code == http.StatusTooManyRequests
	}
}

// startStore starts the store and its operator, until the end of the test.
func startStore(t *testing.T) (*marekvsstore.Store, marekvsclient.MarekvsClusterInterface) {
	t.Helper()
	_, err := env.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: storeNamespace}}, metav1.CreateOptions{})
	require.NoError(t, err)
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	program, err := controlplane.Builder{Root: root, Progress: t.Output()}.Marekvs(t.Context())
	require.NoError(t, err)
	require.NoError(t, marekvsoperator.Install(t.Context(), env.ControlPlane, root))
	client, err := versioned.NewForConfig(env.AdminConfig())
	require.NoError(t, err)
	clusters := client.MarekvsV1alpha1().MarekvsClusters(storeNamespace)

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	store, err := marekvsstore.Start(ctx, marekvsstore.Options{Kube: env.Kube, Namespace: storeNamespace, Scheduled: true})
	require.NoError(t, err)
	operator, err := marekvsoperator.Start(ctx, env.ControlPlane, marekvsoperator.Options{
		Name: "marekvs-operator", Program: program, Dir: t.TempDir(), MetricsPort: store.Port,
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, operator.Stop(ctx))
		cancel()
	})
	return store, clusters
}

// deleteStore deletes the cluster of the store with its Pods, and then everything else.
func deleteStore(t *testing.T, store *marekvsstore.Store, clusters marekvsclient.MarekvsClusterInterface) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	_ = clusters.Delete(ctx, "db", metav1.DeleteOptions{})
	env.UntilNoPods(t, timeout, storeNamespace)
	assert.NoError(t, env.Kube.CoreV1().Namespaces().Delete(ctx, storeNamespace, metav1.DeleteOptions{}))
	assert.NoError(t, store.DeleteVolumes(ctx))
}

func untilStoreHealthy(t *testing.T, clusters marekvsclient.MarekvsClusterInterface, nodes int32) {
	t.Helper()
	testcluster.Eventually(t, timeout, fmt.Sprintf("the store is healthy with %d nodes", nodes), func(ctx context.Context) error {
		cluster, err := clusters.Get(ctx, "db", metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := cluster.Status
		if status.Phase != marekvsv1alpha1.PhaseHealthy || status.Replicas != nodes || status.ObservedGeneration != cluster.Generation {
			return fmt.Errorf("the phase is %s with %d nodes: %s; %s", status.Phase, status.Replicas, status.Message, storePods(ctx))
		}
		return nil
	})
}

// storePods describes the Pods of the store: the Node of each, and its conditions that are not true.
func storePods(ctx context.Context) string {
	pods, err := env.Kube.CoreV1().Pods(storeNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for i := range pods.Items {
		pod := &pods.Items[i]
		fmt.Fprintf(&text, "Pod %s on %q, phase %s, deleted %v", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.DeletionTimestamp != nil)
		for _, c := range pod.Status.Conditions {
			if c.Status != corev1.ConditionTrue {
				fmt.Fprintf(&text, ", %s %s (%s)", c.Type, c.Status, c.Message)
			}
		}
		text.WriteString("; ")
	}
	return text.String()
}

// nodeOf returns the Node of a Pod of the store.
func nodeOf(t *testing.T, pod string) string {
	t.Helper()
	found, err := env.Kube.CoreV1().Pods(storeNamespace).Get(t.Context(), pod, metav1.GetOptions{})
	require.NoError(t, err)
	return found.Spec.NodeName
}

func podReady(ctx context.Context, name string) bool {
	pod, err := env.Kube.CoreV1().Pods(storeNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}

// cordon cordons all Nodes of a pool that are not being drained, or uncordons them.
func cordon(t *testing.T, pool string, cordoned bool) {
	t.Helper()
	nodes, err := env.Nodes(t.Context(), pool)
	require.NoError(t, err)
	for i := range nodes {
		if machine, err := machineOf(t.Context(), &nodes[i]); err == nil && machine.GetDeletionTimestamp() != nil {
			continue
		}
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, cordoned)
		_, err := env.Kube.CoreV1().Nodes().Patch(t.Context(), nodes[i].Name, mergePatch, patch, metav1.PatchOptions{})
		require.NoError(t, err)
	}
}
