// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/cli"
	"helm.sh/helm/v3/pkg/registry"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
	clusterctl "sigs.k8s.io/cluster-api/cmd/clusterctl/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/provider/docker"
)

// operatorPods selects the Pods of the operator.
const operatorPods = "app.kubernetes.io/name=nstance-operator"

// What a release ships runs on real kubelets, with the images that the nodes pull from a registry by their
// digests.
func TestWhatIsShippedRuns(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	options := prepare(t)
	r := makeRelease(t, options.Root, options.Docker.Bridge)
	options.WithoutOperator, options.Registry = true, r.host
	t.Run("chart and clusterctl", func(t *testing.T) { testChartAndClusterctl(t, startWith(t, options), r) })
	t.Run("demo", func(t *testing.T) { testDemo(t, startWith(t, options), r) })
}

// The chart installs an operator with which a pool is scaled, Helm uninstalls it, and clusterctl installs the
// next one and deletes it. No machine is deleted by these changes.
func testChartAndClusterctl(t *testing.T, c *Cluster, r *release) {
	c.untilClusterAPI(t)
	machines := len(c.machinesByID(t))

	h := c.prepareNamespace(t)
	c.installChart(t, h, r)
	until(t, startTimeout, "the groups are imported", c.pool(SystemGroup, int64(len(c.options.Shards)-1)))
	until(t, startTimeout, "the control plane is imported", c.pool(ControlPlaneGroup, 1))
	c.expectOperator(t, r)
	c.scale(t, "kept", 1)
	c.expectScales(t, "workers")
	until(t, stepTimeout, "a worker stays", c.pool("kept", 1))
	kept := c.machinesByID(t)
	require.Len(t, kept, machines+1)

	_, err := action.NewUninstall(h).Run("nstance-operator")
	require.NoError(t, err)
	c.expectWithoutOperator(t, kept)

	c.forgetImages(t, r)
	client, kubeconfig := c.clusterctl(t, r)
	installed, err := client.Init(t.Context(), clusterctl.InitOptions{
		Kubeconfig: kubeconfig, InfrastructureProviders: []string{"nstance"}, WaitProviders: true, WaitProviderTimeout: stepTimeout,
		BootstrapProviders: []string{clusterctl.NoopProvider}, ControlPlaneProviders: []string{clusterctl.NoopProvider},
	})
	require.NoError(t, err)
	require.Len(t, installed, 2)
	assert.Equal(t, "infrastructure-nstance "+releaseVersion, installed[1].ManifestLabel()+" "+installed[1].Version())
	c.expectOperator(t, r)
	c.expectScales(t, "workers")
	assert.Equal(t, kept, c.machinesByID(t))

	require.NoError(t, client.Delete(t.Context(), clusterctl.DeleteOptions{Kubeconfig: kubeconfig, InfrastructureProviders: []string{"nstance"}}))
	c.expectWithoutOperator(t, kept)
}

// untilClusterAPI waits until Cluster API and the Nodes of its group are there.
func (c *Cluster) untilClusterAPI(t *testing.T) {
	t.Helper()
	until(t, startTimeout, "the API server is ready", func(ctx context.Context) error {
		_, err := c.Kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
	until(t, startTimeout, "the Nodes are ready", c.ready(SystemGroup, len(c.options.Shards)-1))
	until(t, startTimeout, "the control plane is ready", c.ready(ControlPlaneGroup, 1))
	until(t, startTimeout, "Cluster API is available", c.available(capiNamespace, "capi-controller-manager", 1))
}

// kubeconfig is the path of a kubeconfig of an administrator.
func (c *Cluster) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(c.options.Dir, "kubeconfig")
	require.NoError(t, c.WriteKubeconfig(path))
	return path
}

// command returns a script in which kubectl and nstance-admin are administrators of the cluster.
func (c *Cluster) command(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	bin := filepath.Join(c.options.Dir, "bin")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	for name, program := range map[string]string{"kubectl": c.options.Kube, "nstance-admin": c.options.Admin} {
		if err := os.Symlink(program, filepath.Join(bin, name)); !os.IsExist(err) {
			require.NoError(t, err)
		}
	}
	command := exec.CommandContext(t.Context(), "bash", "-euxo", "pipefail", "-c", script)
	command.Dir = c.options.Dir
	command.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig(t), "PATH="+bin+":"+os.Getenv("PATH"))
	return command
}

// shell runs commands of the documents, and returns what they print.
func (c *Cluster) shell(t *testing.T, script string) string {
	t.Helper()
	output, err := c.command(t, script).CombinedOutput()
	require.NoError(t, err, string(output))
	return string(output)
}

// pods returns Pods that are not being deleted.
func (c *Cluster) pods(t *testing.T, namespace, selector string) []corev1.Pod {
	t.Helper()
	list, err := c.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	require.NoError(t, err)
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

// prepareNamespace creates what an operator needs before its chart is installed
// (docs/install.md#install-with-helm), and returns Helm for its namespace.
func (c *Cluster) prepareNamespace(t *testing.T) *action.Configuration {
	t.Helper()
	storage := strings.Join(c.storage(), " ")
	c.shell(t, `
kubectl create namespace nstance-system
kubectl label namespace nstance-system nstance.dev/operator=true \
  pod-security.kubernetes.io/enforce=restricted pod-security.kubernetes.io/warn=restricted
nstance-admin cluster ca `+storage+` --output ca.crt
nstance-admin cluster nonce `+storage+` --output nonce.jwt
kubectl -n nstance-system create secret generic nstance-operator-nonce --from-file=nonce.jwt
`)
	flags := genericclioptions.NewConfigFlags(false)
	kubeconfig, namespace := c.kubeconfig(t), installation.Namespace
	flags.KubeConfig, flags.Namespace = &kubeconfig, &namespace
	h := &action.Configuration{}
	require.NoError(t, h.Init(flags, namespace, "secret", func(string, ...any) {}))
	return h
}

// installChart installs the chart that the registry has, and waits until the operator is ready.
func (c *Cluster) installChart(t *testing.T, h *action.Configuration, r *release) {
	t.Helper()
	authority, err := os.ReadFile(filepath.Join(c.options.Dir, "ca.crt"))
	require.NoError(t, err)
	settings := cli.New()
	settings.RepositoryCache, settings.RepositoryConfig = t.TempDir(), filepath.Join(t.TempDir(), "repositories.yaml")
	h.RegistryClient, err = registry.NewClient(registry.ClientOptPlainHTTP())
	require.NoError(t, err)
	install := action.NewInstall(h)
	install.ReleaseName, install.Namespace, install.Wait, install.Timeout = "nstance-operator", installation.Namespace, true, stepTimeout
	install.PlainHTTP, install.Version = true, strings.TrimPrefix(releaseVersion, "v")
	path, err := install.LocateChart("oci://"+r.repository()+"/charts/nstance-operator", settings)
	require.NoError(t, err)
	chart, err := loader.Load(path)
	require.NoError(t, err)
	_, err = install.RunWithContext(t.Context(), chart, object{
		"clusterID": installation.ClusterID, "shards": c.addresses(), "clusterCA": string(authority),
	})
	if err != nil {
		t.Log(c.problems(t, installation.Namespace))
	}
	require.NoError(t, err)
}

// clusterctl returns clusterctl with the repository of a release, and the kubeconfig for it. The repository
// has a core provider without components, because Cluster API runs.
func (c *Cluster) clusterctl(t *testing.T, r *release) (clusterctl.Client, clusterctl.Kubeconfig) {
	t.Helper()
	ctrllog.SetLogger(klog.Background()) // of its clients
	stub, err := controlplane.Render(filepath.Join(c.options.Root, "e2e", "installation", "testdata", "cert-manager"))
	require.NoError(t, err)
	require.NoError(t, controlplane.Apply(t.Context(), c.Config, "test", stub))
	configuration, err := installation.WriteCoreProvider(r.dir, c.options.CAPIModule)
	require.NoError(t, err)
	client, err := clusterctl.New(t.Context(), configuration)
	require.NoError(t, err)
	t.Setenv("NSTANCE_CLUSTER_ID", installation.ClusterID)
	return client, clusterctl.Kubeconfig{Path: c.kubeconfig(t)}
}

// problems describes the Pods of a namespace and what happened to them.
func (c *Cluster) problems(t *testing.T, namespace string) string {
	t.Helper()
	output, err := c.command(t, "kubectl -n "+namespace+" get pods -o wide; kubectl -n "+namespace+" get events --sort-by=.lastTimestamp").CombinedOutput()
	return fmt.Sprint(string(output), err)
}

// expectOperator expects that the operator runs on real kubelets as it is shipped: with images that were pulled,
// in a namespace that admits restricted Pods only, and with a webhook that the API server reaches.
func (c *Cluster) expectOperator(t *testing.T, r *release) {
	t.Helper()
	until(t, stepTimeout, "the operator is available", c.available(installation.Namespace, "nstance-operator", 2))
	c.expectPulled(t, r, installation.Namespace, operatorPods, "nstance-operator")
	c.expectRestricted(t, installation.Namespace)
	until(t, stepTimeout, "the API server calls the webhook by its Service", c.rejected)
}

// expectRestricted expects that a namespace admits restricted Pods only.
func (c *Cluster) expectRestricted(t *testing.T, namespace string) {
	t.Helper()
	_, err := c.Kube.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "unrestricted"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "unrestricted", Image: "localhost/pause:1"}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	assert.ErrorContains(t, err, `violates PodSecurity "restricted:latest"`)
}

// expectScales expects that a pool without machines gets a machine that joins, and is empty again.
func (c *Cluster) expectScales(t *testing.T, pool string) {
	t.Helper()
	c.scale(t, pool, 0)
	until(t, stepTimeout, "the pool is empty", c.ready(pool, 0))
	c.scale(t, pool, 1)
	until(t, stepTimeout, "a worker joined", c.ready(pool, 1))
	// Cluster API deletes the Nodes that it has recorded.
	until(t, stepTimeout, "Cluster API has the Node of the worker", c.pool(pool, 1))
	c.scale(t, pool, 0)
	until(t, stepTimeout, "the worker left", c.ready(pool, 0))
	until(t, stepTimeout, "the machine of the worker left", func(ctx context.Context) error {
		machines, err := c.options.Docker.Nodes(ctx, c.options.Shards...)
		for _, machine := range machines {
			if machine.Labels[docker.LabelGroup] == pool {
				err = errors.Join(err, fmt.Errorf("machine %s exists", machine.Names))
			}
		}
		return err
	})
}

// expectWithoutOperator expects that the operator is gone, and that machines, Nodes, kinds and pools have stayed.
func (c *Cluster) expectWithoutOperator(t *testing.T, machines map[string]string) {
	t.Helper()
	until(t, stepTimeout, "the operator has stopped", func(ctx context.Context) error {
		list, err := c.Kube.CoreV1().Pods(installation.Namespace).List(ctx, metav1.ListOptions{LabelSelector: operatorPods})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d Pods exist", len(list.Items))
		}
		return err
	})
	assert.Equal(t, machines, c.machinesByID(t))
	nodes, err := c.Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
		assert.False(t, nodes.Items[i].Spec.Unschedulable, "Node %s is cordoned", nodes.Items[i].Name)
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(machines)), names)
	client, err := dynamic.NewForConfig(c.Config)
	require.NoError(t, err)
	pools, err := client.Resource(nstanceMachinePools).Namespace(installation.Namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var left []string
	for i := range pools.Items {
		left = append(left, pools.Items[i].GetName())
		assert.Nil(t, pools.Items[i].GetDeletionTimestamp(), "pool %s is being deleted", pools.Items[i].GetName())
	}
	assert.ElementsMatch(t, []string{"kept", "workers", SystemGroup, ControlPlaneGroup}, left)
}
