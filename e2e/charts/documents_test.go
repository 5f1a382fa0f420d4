// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package charts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/inputs"
)

// The values in docs/install.md#install-with-helm are values of the chart.
func TestDocumentedValues(t *testing.T) {
	values := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(yamlBlock(t, "install.md", "### Install with Helm")), &values))
	rendered := render(t, load(t, folder(t, operatorChart)), namespace, values)
	shards := rendered["ConfigMap/"+namespace+"/nstance-shards"]
	assert.Equal(t, "[2001:db8::a]:8993", field(shards, []string{"data", "us-west-2a"}))
}

// The overlay in docs/server.md#in-kubernetes is a kustomization of the server.
func TestDocumentedOverlayOfTheServer(t *testing.T) {
	manifests := filepath.Join(root(t), "manifests")
	parent := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(parent, "server"), os.DirFS(filepath.Join(manifests, "server"))))
	overlay := filepath.Join(parent, "us-west-2a")
	require.NoError(t, os.Mkdir(overlay, 0o755))
	text := yamlBlock(t, "server.md", "### In Kubernetes")
	require.NoError(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600))
	list, err := controlplane.Render(overlay)
	require.NoError(t, err)
	rendered := objects{}
	for _, object := range list {
		require.NoError(t, rendered.add(object))
	}
	container := firstContainer(t, rendered["Deployment/nstance-servers/nstance-server"])
	assert.Equal(t, "registry.example.com/nstance-server:v0.1.0", container["image"])
	assert.Equal(t, []any{"--shard=us-west-2a", "--storage=s3", "--bucket=my-bucket", "--cache-dir=/cache"}, container["args"])
	assert.Contains(t, rendered, "Service/nstance-servers/nstance-server")
	assert.Contains(t, rendered, "Namespace/nstance-servers")
}

// further are objects that an overlay may have beside those of the operator.
const further = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: prometheus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: nstance-operator-metrics-reader}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: monitoring}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: images}
spec: {validations: [{expression: "true"}]}
`

// The overlay in docs/install.md#install sets cluster id, tenant and namespace wherever they are, as the
// chart does, and changes no further object.
func TestDocumentedOverlayOfTheOperator(t *testing.T) {
	text := yamlBlock(t, "install.md", "## Install")
	settings := yamlBlock(t, "install.md", "   and this `settings.yaml`:")
	settings = strings.NewReplacer(": prod\n", ": my-prod\n", ": default\n", ": my-team\n", ": nstance-system\n", ": nstance-prod\n").Replace(settings)
	for _, base := range []string{"operator", "external"} {
		parent := t.TempDir()
		for _, name := range []string{base, "settings"} {
			require.NoError(t, os.Symlink(filepath.Join(root(t), "manifests", name), filepath.Join(parent, name)))
		}
		overlay := filepath.Join(parent, "prod")
		require.NoError(t, os.Mkdir(overlay, 0o755))
		files := map[string]string{
			"kustomization.yaml": strings.Replace(strings.ReplaceAll(text, "../operator", "../"+base), "resources:\n", "resources:\n  - further.yaml\n", 1),
			"settings.yaml":      settings,
			"further.yaml":       further,
		}
		for name, content := range files {
			require.NoError(t, os.WriteFile(filepath.Join(overlay, name), []byte(content), 0o600))
		}
		list, err := controlplane.Render(overlay)
		require.NoError(t, err)
		rendered := objects{}
		for _, object := range list {
			require.NoError(t, rendered.add(object))
			data, err := object.MarshalJSON()
			require.NoError(t, err)
			assert.NotContains(t, string(data), "nstance-system", "%s of %s", object.GetName(), base)
			assert.NotContains(t, string(data), "dev--default", "%s of %s", object.GetName(), base)
		}
		assert.NotContains(t, rendered, "ConfigMap/nstance-settings")
		assert.Contains(t, rendered, "Namespace/nstance-prod")
		container := firstContainer(t, rendered["Deployment/nstance-prod/nstance-operator"])
		assert.Equal(t, "registry.example.com/nstance-operator:v0.1.0", container["image"])
		assert.Contains(t, container["env"], map[string]any{"name": "NSTANCE_CLUSTER_ID", "value": "my-prod"})
		assert.Contains(t, container["env"], map[string]any{"name": "NSTANCE_TENANT", "value": "my-team"})
		role := rendered["Role/nstance-prod/nstance-operator"]
		assert.Equal(t, []any{"my-prod--my-team-kubeconfig"}, field(role, []string{"rules", "0", "resourceNames"}))
		assert.Equal(t, "monitoring", field(rendered["ClusterRoleBinding/prometheus"], []string{"subjects", "0", "namespace"}))
		assert.Contains(t, rendered, "ValidatingAdmissionPolicy/images")
	}
}

// yamlBlock returns the first block of YAML below a line of a document, such as a heading.
func yamlBlock(t *testing.T, document, heading string) string {
	t.Helper()
	require.NoError(t, inputs.Check(inputs.Docs))
	data, err := os.ReadFile(filepath.Join(root(t), "docs", document))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(data), "\n"+heading+"\n")
	require.True(t, found, "%s has no %q", document, heading)
	before, rest, found := strings.Cut(section, "```yaml\n")
	require.True(t, found, "%s has no block of YAML", heading)
	block, _, _ := strings.Cut(rest, "```")
	indent := before[strings.LastIndex(before, "\n")+1:]
	return strings.ReplaceAll("\n"+block, "\n"+indent, "\n")
}
