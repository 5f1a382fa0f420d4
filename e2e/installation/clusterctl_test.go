// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	clusterctl "sigs.k8s.io/cluster-api/cmd/clusterctl/client"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/tree"
	runtimeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"nstance.dev/operator/e2e/controlplane"
)

const releaseVersion = "v0.1.0"

// newClusterctl returns clusterctl with a repository of its own, which has the release of
// this source and a core provider without components: Cluster API runs already.
func newClusterctl(t *testing.T, root string, binaries controlplane.Binaries) clusterctl.Client {
	t.Helper()
	log.SetLogger(klog.Background()) // of its clients
	repository := t.TempDir()
	release := exec.CommandContext(t.Context(), "make", "-C", root, "release-manifests", "VERSION="+releaseVersion, "RELEASE_DIR="+repository)
	output, err := release.CombinedOutput()
	require.NoError(t, err, "make release-manifests: %s", output)

	configuration, err := WriteCoreProvider(repository, binaries.CAPIModule)
	require.NoError(t, err)
	client, err := clusterctl.New(t.Context(), configuration)
	require.NoError(t, err)
	return client
}

// testVariables checks that the variables of the release are replaced wherever the
// manifests have their defaults.
func testVariables(t *testing.T, client clusterctl.Client) {
	t.Setenv("NSTANCE_NAMESPACE", "nodes")
	t.Setenv("NSTANCE_CLUSTER_ID", "prod")
	t.Setenv("NSTANCE_TENANT", "team")
	components, err := client.GetProviderComponents(t.Context(), "nstance", clusterctlv1.InfrastructureProviderType, clusterctl.ComponentsOptions{})
	require.NoError(t, err)
	assert.Equal(t, "nodes", components.TargetNamespace())
	assert.Equal(t, []string{"docker.io/library/nstance-operator:" + releaseVersion}, components.Images())
	text, err := components.Yaml()
	require.NoError(t, err)
	for value, count := range map[string]int{
		"value: dev\n": 0, "dev--default-kubeconfig": 0, Namespace: 0, "${": 0,
		"value: prod\n": 1, "value: team\n": 1, "- prod--team-kubeconfig\n": 1,
	} {
		assert.Equal(t, count, strings.Count(string(text), value), "how often the components contain %q", value)
	}
}

// testMovable checks that clusterctl moves the kinds that kubectl has installed: it takes those with
// its label (https://cluster-api.sigs.k8s.io/clusterctl/provider-contract#labels).
func testMovable(t *testing.T, cp *controlplane.ControlPlane) {
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	require.NoError(t, err)
	kinds, err := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
		List(t.Context(), metav1.ListOptions{LabelSelector: "clusterctl.cluster.x-k8s.io,cluster.x-k8s.io/provider=infrastructure-nstance"})
	require.NoError(t, err)
	var names []string
	for _, kind := range kinds.Items {
		names = append(names, kind.GetName())
	}
	assert.ElementsMatch(t, []string{
		"nstanceclusters.infrastructure.cluster.x-k8s.io", "nstancemachinepools.infrastructure.cluster.x-k8s.io",
		"nstancemachines.infrastructure.cluster.x-k8s.io", "nstancemachinetemplates.infrastructure.cluster.x-k8s.io",
		"nstanceshardgroups.infrastructure.cluster.x-k8s.io",
	}, names)
}

// testInit installs the release with clusterctl and runs the operator of its Deployment.
func testInit(t *testing.T, cp *controlplane.ControlPlane, n *Installation, client clusterctl.Client) {
	require.NoError(t, n.Apply(t.Context(), filepath.Join("testdata", "cert-manager")))
	installed, err := client.Init(t.Context(), clusterctl.InitOptions{
		Kubeconfig:              clusterctl.Kubeconfig{Path: cp.KubeconfigPath()},
		InfrastructureProviders: []string{"nstance"},
		BootstrapProviders:      []string{clusterctl.NoopProvider},
		ControlPlaneProviders:   []string{clusterctl.NoopProvider},
	})
	require.NoError(t, err)
	require.Len(t, installed, 2)
	assert.Equal(t, "infrastructure-nstance "+releaseVersion+" in "+Namespace,
		installed[1].ManifestLabel()+" "+installed[1].Version()+" in "+installed[1].TargetNamespace())

	_, err = n.StartOperator(t.Context(), Operator{Component: "operator"})
	require.NoError(t, err)
}

// testPool creates a pool from the release's template, and waits until clusterctl shows
// it.
func testPool(t *testing.T, cp *controlplane.ControlPlane, client clusterctl.Client) {
	kubeconfig := clusterctl.Kubeconfig{Path: cp.KubeconfigPath()}
	t.Setenv("NSTANCE_SHARDS", "us-west-2a, us-west-2b")
	template, err := client.GetClusterTemplate(t.Context(), clusterctl.GetClusterTemplateOptions{
		Kubeconfig: kubeconfig, ClusterName: ClusterName, TargetNamespace: Namespace, WorkerMachineCount: ptr.To[int64](3),
	})
	require.NoError(t, err)
	var objects []*unstructured.Unstructured
	for _, object := range template.Objs() {
		objects = append(objects, &object)
	}
	require.NoError(t, controlplane.Apply(t.Context(), cp.AdminConfig(), "kubectl", objects))

	var described *tree.ObjectTree
	var state error
	err = wait.PollUntilContextTimeout(t.Context(), 250*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		described, err = client.DescribeCluster(ctx, clusterctl.DescribeClusterOptions{
			Kubeconfig: kubeconfig, Namespace: Namespace, ClusterName: ClusterName, Echo: true,
		})
		if state = err; err == nil {
			state = checkTree(described)
		}
		return state == nil, nil
	})
	require.NoError(t, errors.Join(err, state))
	printTree(t, described, described.GetRoot(), "")
}

// checkTree succeeds when clusterctl shows the Cluster of the operator, that the operator
// is registered at the shards, and the pool of the template with its Nodes.
func checkTree(described *tree.ObjectTree) error {
	root := described.GetRoot()
	infrastructure, err := child(described, root, "NstanceCluster", ClusterName)
	if err != nil {
		return err
	}
	for _, condition := range []string{"Ready", "IdentityReady"} {
		if !meta.IsStatusConditionTrue(tree.GetConditions(infrastructure), condition) {
			return fmt.Errorf("conditions of the NstanceCluster: %+v, want %s", tree.GetConditions(infrastructure), condition)
		}
	}
	workers, err := child(described, root, "WorkerGroup", "Workers")
	if err != nil {
		return err
	}
	object, err := child(described, workers, "MachinePool", "workers")
	if err != nil {
		return err
	}
	if pool := object.(*clusterv1.MachinePool); pool.Status.Phase != string(clusterv1.MachinePoolPhaseRunning) || ptr.Deref(pool.Status.ReadyReplicas, 0) != 3 {
		return fmt.Errorf("MachinePool is %s with %d ready, want Running with 3", pool.Status.Phase, ptr.Deref(pool.Status.ReadyReplicas, 0))
	}
	pool, err := child(described, object, "NstanceMachinePool", "workers")
	if err != nil {
		return err
	}
	if ready := tree.GetReadyCondition(pool); ready == nil || ready.Status != metav1.ConditionTrue {
		return fmt.Errorf("NstanceMachinePool is not ready: %+v", ready)
	}
	return nil
}

// child finds an object below another.
func child(described *tree.ObjectTree, parent runtimeclient.Object, kind, name string) (runtimeclient.Object, error) {
	for _, object := range described.GetObjectsByParent(parent.GetUID()) {
		if object.GetObjectKind().GroupVersionKind().Kind == kind && object.GetName() == name {
			return object, nil
		}
	}
	return nil, fmt.Errorf("the tree shows no %s %s below %s", kind, name, parent.GetName())
}

func printTree(t *testing.T, described *tree.ObjectTree, object runtimeclient.Object, indent string) {
	ready := "-"
	if condition := tree.GetReadyCondition(object); condition != nil {
		ready = string(condition.Status)
	}
	t.Logf("%s%s/%s ready %s", indent, object.GetObjectKind().GroupVersionKind().Kind, object.GetName(), ready)
	for _, below := range described.GetObjectsByParent(object.GetUID()) {
		printTree(t, described, below, indent+"  ")
	}
}
