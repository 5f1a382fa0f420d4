// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package helm installs, upgrades, rolls back and uninstalls the chart of the operator on an API server,
// with the library of Helm, while a pool has instances.
package helm

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/release"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	kyaml "sigs.k8s.io/yaml"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/inputs"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/previous"
	"nstance.dev/operator/e2e/testcluster"
)

const (
	name = "nstance-operator"
	pool = "charted"
)

// env is the cluster that the test uses.
var env *testcluster.Cluster

func TestMain(m *testing.M) {
	// Helm logs every link of a chart.
	log.SetOutput(io.Discard)
	testcluster.Main(m, &env, testcluster.Options{Shards: installation.Shards("us-west-2a", "us-west-2b"), OperatorFlags: []string{}})
}

// helm is the release of the operator.
type helm struct {
	configuration *action.Configuration
	webhook       string
}

func newHelm(t *testing.T) *helm {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(false)
	kubeconfig, namespace := env.KubeconfigPath(), installation.Namespace
	flags.KubeConfig, flags.Namespace = &kubeconfig, &namespace
	h := &helm{configuration: &action.Configuration{}, webhook: env.Operator.WebhookURL()}
	require.NoError(t, h.configuration.Init(flags, namespace, "secret", func(string, ...any) {}))
	return h
}

// Run implements postrender.PostRenderer: there is no network of Services through which the API server
// could call the webhook.
func (h *helm) Run(rendered *bytes.Buffer) (*bytes.Buffer, error) {
	changed := &bytes.Buffer{}
	for reader := yaml.NewYAMLReader(bufio.NewReader(rendered)); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return changed, nil
		}
		if err != nil {
			return nil, err
		}
		var object map[string]any
		if err := kyaml.Unmarshal(document, &object); err != nil {
			return nil, err
		}
		if object["kind"] == "ValidatingWebhookConfiguration" {
			for _, webhook := range object["webhooks"].([]any) {
				webhook.(map[string]any)["clientConfig"] = map[string]any{"url": h.webhook}
			}
			if document, err = kyaml.Marshal(object); err != nil {
				return nil, err
			}
		}
		fmt.Fprintf(changed, "---\n%s\n", document)
	}
}

func (h *helm) install(t *testing.T, c *chart.Chart, values map[string]any) *release.Release {
	t.Helper()
	install := action.NewInstall(h.configuration)
	install.ReleaseName, install.Namespace, install.PostRenderer = name, installation.Namespace, h
	// The kinds exist, with the objects of a pool.
	install.TakeOwnership = true
	installed, err := install.RunWithContext(t.Context(), c, values)
	require.NoError(t, err)
	return installed
}

// upgrade is helm upgrade as docs/install.md#install-with-helm has it, also for a roll-back.
func (h *helm) upgrade(t *testing.T, c *chart.Chart, values map[string]any) *release.Release {
	t.Helper()
	upgrade := action.NewUpgrade(h.configuration)
	upgrade.Namespace, upgrade.PostRenderer, upgrade.ResetThenReuseValues = installation.Namespace, h, true
	upgraded, err := upgrade.RunWithContext(t.Context(), name, c, values)
	require.NoError(t, err)
	return upgraded
}

// load loads the chart of the operator in a tree of files.
func load(t *testing.T, root string) *chart.Chart {
	t.Helper()
	loaded, err := loader.Load(filepath.Join(root, "manifests", "helm", name))
	require.NoError(t, err)
	return loaded
}

// image returns the image of the Deployment.
func image(t *testing.T) string {
	t.Helper()
	deployment, err := env.Kube.AppsV1().Deployments(installation.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return deployment.Spec.Template.Spec.Containers[0].Image
}

// expectObjects expects that each object of a release exists.
func expectObjects(t *testing.T, r *release.Release) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	require.NoError(t, os.WriteFile(path, []byte(r.Manifest), 0o600))
	env.Kubectl(t, "get", "-o", "name", "-f", path)
}

// expectKept expects the kinds and the namespace.
func expectKept(t *testing.T) {
	t.Helper()
	kept := env.Kubectl(t, "get", "-o", "name", "namespaces,customresourcedefinitions")
	assert.Contains(t, kept, "namespace/"+installation.Namespace)
	assert.Equal(t, 5, strings.Count(kept, ".infrastructure.cluster.x-k8s.io\n"), "kinds")
}

// A release of the chart replaces an installation with kubectl, is upgraded from the version before
// while a pool is scaled, is rolled back, upgraded again and uninstalled. No instance of the pool is
// terminated, and the kinds stay.
func TestReleaseOfTheChart(t *testing.T) {
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	require.NoError(t, inputs.Check(inputs.Manifests))
	before, err := previous.Charts(t.Context(), root)
	require.NoError(t, err)
	old, current := load(t, before), load(t, root)
	env.CreatePoolForTest(t, pool, 4)
	env.UntilRunning(t, pool, 4)
	witness := env.NewWitness(t, pool)
	h := newHelm(t)
	var process installation.Operator
	start := func(component string) {
		process, err = env.Installation.StartOperator(t.Context(), installation.Operator{Component: component, WebhookPort: env.Operator.WebhookPort})
		require.NoError(t, err)
	}
	stop := func(component string) { require.NoError(t, env.Component(component).Stop(t.Context())) }
	scale := func(replicas int32) {
		witness.ExpectNone(t)
		witness.SetBaseline(t)
		env.Scale(t, pool, replicas)
	}

	// From kubectl to Helm.
	stop(env.Operator.Component)
	env.Kubectl(t, "delete", "--timeout=1m", "-k", filepath.Join(root, "manifests", "uninstall"))
	installed := h.install(t, old, map[string]any{"replicas": 0, "image": map[string]any{"tag": "v0.0.1"}})
	expectObjects(t, installed)
	assert.Equal(t, "docker.io/library/nstance-operator:v0.0.1", image(t))

	// The upgrade, during a scale-up that begins before it.
	scale(6)
	upgraded := h.upgrade(t, current, map[string]any{"image": map[string]any{"tag": "v0.0.2"}})
	expectObjects(t, upgraded)
	assert.Equal(t, 2, upgraded.Version)
	assert.Equal(t, "docker.io/library/nstance-operator:v0.0.2", image(t))
	start("charted")
	env.UntilRunning(t, pool, 6)

	// The roll-back leaves the kinds of the new version.
	stop(process.Component)
	kinds := env.Kubectl(t, "get", "customresourcedefinitions", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.generation}{"\n"}{end}`)
	rolledBack := h.upgrade(t, old, map[string]any{"image": map[string]any{"tag": "v0.0.1"}, "crds": map[string]any{"install": false}})
	expectObjects(t, rolledBack)
	assert.NotContains(t, rolledBack.Manifest, "kind: CustomResourceDefinition")
	assert.Equal(t, "docker.io/library/nstance-operator:v0.0.1", image(t))
	assert.Equal(t, kinds, env.Kubectl(t, "get", "customresourcedefinitions", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.generation}{"\n"}{end}`))
	expectKept(t)

	scale(8)
	expectObjects(t, h.upgrade(t, current, map[string]any{"image": map[string]any{"tag": "v0.0.2"}, "crds": map[string]any{"install": true}}))
	start("charted-again")
	env.UntilRunning(t, pool, 8)

	// The uninstallation keeps machines, objects and kinds, and what another release begins with.
	stop(process.Component)
	_, err = action.NewUninstall(h.configuration).Run(name)
	require.NoError(t, err)
	expectKept(t)
	left := env.Kubectl(t, "get", "-o", "name", "--namespace", installation.Namespace, "deployments,services,serviceaccounts,roles,rolebindings,machinepools,configmaps")
	assert.NotContains(t, left, "deployment.apps/"+name)
	assert.NotContains(t, left, "serviceaccount/"+name)
	for _, kept := range []string{"machinepool.cluster.x-k8s.io/" + pool, "configmap/nstance-shards", "configmap/nstance-cluster-ca"} {
		assert.Contains(t, left, kept)
	}
	witness.ExpectNone(t)
	require.NoError(t, env.SizesAre(t.Context(), pool, 4, 4))

	// The next release continues from there.
	expectObjects(t, h.install(t, current, map[string]any{"replicas": 0}))
	start("charted-anew")
	env.UntilRunning(t, pool, 8)
	witness.ExpectNone(t)
}
