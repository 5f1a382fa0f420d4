// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package charts

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"nstance.dev/operator/pkg/base/identifier/identifiertest"
)

const certificate = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"

var digest = "sha256:" + strings.Repeat("0a", 32)

// value is a documented value of a chart.
type value struct {
	// set is a valid value, and the schema rejects wrong.
	set, wrong any
	// with are further values, without which set has no effect.
	with map[string]any
	// key is the object that set changes, and path the field of the object that becomes want. If
	// path is empty, want says whether there is such an object.
	key  string
	path []string
	want any
}

// common are the values of every chart.
func common(deployment string) map[string]value {
	image := []string{"spec", "template", "spec", "containers", "0", "image"}
	pod := func(path ...string) []string { return append([]string{"spec", "template", "spec"}, path...) }
	name := filepath.Base(deployment)
	toleration := map[string]any{"key": "control-plane", "operator": "Exists"}
	affinity := map[string]any{"nodeAffinity": map[string]any{}}
	return map[string]value{
		"replicas":          {set: 3, wrong: -1, key: deployment, path: []string{"spec", "replicas"}, want: int64(3)},
		"image.repository":  {set: "registry.example.com/name", wrong: "", key: deployment, path: image, want: "registry.example.com/name:dev"},
		"image.tag":         {set: "v1.2.3", wrong: 1, key: deployment, path: image, want: "docker.io/library/" + name + ":v1.2.3"},
		"image.digest":      {set: digest, wrong: "sha256:1", key: deployment, path: image, want: "docker.io/library/" + name + "@" + digest},
		"image.pullSecrets": {set: []any{"registry"}, wrong: "registry", key: deployment, path: pod("imagePullSecrets"), want: []any{map[string]any{"name": "registry"}}},
		"env": {
			set: map[string]any{"ANY_FLAG": "true"}, wrong: map[string]any{"ANY_FLAG": true},
			key: deployment, path: pod("containers", "0", "env", "-1"), want: map[string]any{"name": "ANY_FLAG", "value": "true"},
		},
		"resources": {
			set: map[string]any{"limits": map[string]any{"memory": "1Gi"}}, wrong: map[string]any{"limits": "1Gi"},
			key: deployment, path: pod("containers", "0", "resources", "limits", "memory"), want: "1Gi",
		},
		"priorityClassName": {set: "important", wrong: 1, key: deployment, path: pod("priorityClassName"), want: "important"},
		"nodeSelector": {
			set: map[string]any{"role": "control-plane"}, wrong: map[string]any{"role": true},
			key: deployment, path: pod("nodeSelector"), want: map[string]any{"role": "control-plane"},
		},
		"tolerations": {set: []any{toleration}, wrong: toleration, key: deployment, path: pod("tolerations"), want: []any{toleration}},
		"affinity":    {set: affinity, wrong: []any{}, key: deployment, path: pod("affinity"), want: affinity},
	}
}

// documented are the values of each chart.
func documented() map[string]map[string]value {
	deployment := "Deployment/" + namespace + "/nstance-operator"
	operator := common(deployment)
	maps.Copy(operator, map[string]value{
		"clusterID": {
			set: "prod", wrong: "Prod", key: "Role/" + namespace + "/nstance-operator",
			path: []string{"rules", "0", "resourceNames"}, want: []any{"prod--default-kubeconfig"},
		},
		"tenant": {
			set: "team", wrong: "", key: "Role/" + namespace + "/nstance-operator",
			path: []string{"rules", "0", "resourceNames"}, want: []any{"dev--team-kubeconfig"},
		},
		"shards": {
			set: map[string]any{"a": "10.0.0.1:8993", "a.registration": "10.0.0.1:8992"}, wrong: map[string]any{"a": "10.0.0.1"},
			key: "ConfigMap/" + namespace + "/nstance-shards", path: []string{"data", "a.registration"}, want: "10.0.0.1:8992",
		},
		"clusterCA": {
			set: certificate, wrong: "ca.crt", key: "ConfigMap/" + namespace + "/nstance-cluster-ca",
			path: []string{"data", "ca.crt"}, want: certificate,
		},
		"nameSuffix": {set: "team", wrong: "-team", key: "ClusterRoleBinding/nstance-operator-workload-team", want: true},
		"clusterAPIAccount": {
			set: "system:serviceaccount:capi:manager", wrong: "'' || true", key: "ValidatingAdmissionPolicy/nstance-operator-machine-deletions",
			path: []string{"spec", "variables", "0", "expression"}, want: "'system:serviceaccount:capi:manager'",
		},
		"workload.endpoint": {
			set: "https://workload.example.com", wrong: "workload.example.com", key: "ClusterRole/nstance-operator-workload", want: false,
		},
		"workload.secretName": {
			set: "other", wrong: "", key: deployment, with: nested("workload.endpoint", "https://workload.example.com:6443"),
			path: []string{"spec", "template", "spec", "volumes", "0", "secret", "secretName"}, want: "other",
		},
		"crds.install": {
			set: false, wrong: "false", key: "CustomResourceDefinition/nstancemachinepools.infrastructure.cluster.x-k8s.io", want: false,
		},
	})
	marekvs := common("Deployment/" + namespace + "/marekvs-operator")
	marekvs["crds.install"] = value{set: false, wrong: 0, key: "CustomResourceDefinition/marekvsclusters.marekvs.io", want: false}
	return map[string]map[string]value{operatorChart: operator, marekvsChart: marekvs, serverChart: documentedServer()}
}

// documentedServer returns the values of the chart of a shard server.
func documentedServer() map[string]value {
	deployment := "Deployment/" + namespace + "/nstance-server"
	service := "Service/" + namespace + "/nstance-server"
	pod := func(path ...string) []string { return append([]string{"spec", "template", "spec"}, path...) }
	arg := func(index string) []string { return pod("containers", "0", "args", index) }
	values := common(deployment)
	delete(values, "replicas") // a Service does not know which of several servers leads
	maps.Copy(values, map[string]value{
		"shard":          {set: "zone-a", wrong: "Zone", key: deployment, path: arg("0"), want: "--shard=zone-a"},
		"storage.type":   {set: "gcs", wrong: "azure", key: deployment, path: arg("1"), want: "--storage=gcs"},
		"storage.bucket": {set: "other", wrong: "", key: deployment, path: arg("2"), want: "--bucket=other"},
		"storage.prefix": {set: "a/", wrong: 1, key: deployment, path: arg("3"), want: "--prefix=a/"},
		"storage.claimName": {
			set: "bucket", wrong: "A_B", with: nested("storage", map[string]any{"type": "file", "bucket": "/bucket"}),
			key: deployment, path: pod("volumes", "-1", "persistentVolumeClaim", "claimName"), want: "bucket",
		},
		"secretName":          {set: "keys", wrong: "", key: deployment, path: pod("containers", "0", "envFrom", "0", "secretRef", "name"), want: "keys"},
		"filesSecretName":     {set: "files", wrong: "A_B", key: deployment, path: pod("volumes", "-1", "secret", "secretName"), want: "files"},
		"args":                {set: []any{"--v=4"}, wrong: []any{"--shard=a"}, key: deployment, path: arg("-1"), want: "--v=4"},
		"nameSuffix":          {set: "zone-a", wrong: "-a", key: service + "-zone-a", want: true},
		"serviceAccountName":  {set: "servers", wrong: "A_B", key: deployment, path: pod("serviceAccountName"), want: "servers"},
		"service.type":        {set: "ClusterIP", wrong: "ExternalName", key: service, path: []string{"spec", "type"}, want: "ClusterIP"},
		"service.annotations": {set: map[string]any{"a": "b"}, wrong: map[string]any{"a": true}, key: service, path: []string{"metadata", "annotations", "a"}, want: "b"},
	})
	return values
}

// Each documented value has an effect, and the schema rejects a wrong one.
func TestValues(t *testing.T) {
	for name, values := range documented() {
		loaded := load(t, folder(t, name))
		defaults := render(t, loaded, namespace, required(name))
		for path, v := range values {
			t.Run(name+" "+path, func(t *testing.T) {
				with := func(set any) map[string]any {
					return chartutil.MergeTables(chartutil.MergeTables(nested(path, set), v.with), required(name))
				}
				rendered := render(t, loaded, namespace, with(v.set))
				if name != serverChart { // its account is created by hand
					expectReferences(t, rendered)
				}
				if len(v.path) == 0 {
					assert.Equal(t, v.want, rendered[v.key] != nil, v.key)
					assert.NotEqual(t, v.want, defaults[v.key] != nil, "%s of the default values", v.key)
				} else {
					assert.Equal(t, v.want, field(rendered[v.key], v.path), v.path)
					assert.NotEqual(t, v.want, field(defaults[v.key], v.path), "%s of the default values", v.path)
				}
				_, err := tryRender(loaded, namespace, with(v.wrong))
				assert.ErrorContains(t, err, "values don't meet the specifications of the schema")
			})
		}
	}
}

// A value that the templates set cannot be set a second time, and a value that no chart has is a
// typing mistake.
func TestSchemaRejectsWhatHasNoEffect(t *testing.T) {
	loaded := load(t, folder(t, operatorChart))
	for _, values := range []map[string]any{
		nested("env.NSTANCE_TENANT", "team"),
		nested("env.nstance_debug", "true"),
		nested("clusterId", "prod"),
		nested("image.name", "nstance-operator"),
	} {
		_, err := tryRender(loaded, namespace, values)
		assert.ErrorContains(t, err, "values don't meet the specifications of the schema", values)
	}
}

// The schemas accept the ids that operators and servers accept.
func TestSchemaOfIdentifiers(t *testing.T) {
	for name, paths := range map[string][]string{operatorChart: {"clusterID", "tenant"}, serverChart: {"shard"}} {
		loaded := load(t, folder(t, name))
		for _, c := range identifiertest.Cases {
			for _, path := range paths {
				_, err := tryRender(loaded, namespace, chartutil.MergeTables(nested(path, c.Value), required(name)))
				assert.Equal(t, c.Valid, err == nil, "%s %q: %v", path, c.Value, err)
			}
		}
	}
}

// A server without a shard or a bucket cannot start.
func TestServerNeedsShardAndBucket(t *testing.T) {
	loaded := load(t, folder(t, serverChart))
	for _, values := range []map[string]any{nil, nested("shard", "a"), nested("storage.bucket", "b")} {
		_, err := tryRender(loaded, namespace, values)
		assert.ErrorContains(t, err, "values don't meet the specifications of the schema", values)
	}
}

// values.yaml has a comment on each value, which the schema repeats as its description.
func TestValuesAreDocumented(t *testing.T) {
	for name, values := range documented() {
		data, err := os.ReadFile(filepath.Join(folder(t, name), "values.yaml"))
		require.NoError(t, err)
		document, err := yaml.Parse(string(data))
		require.NoError(t, err)
		comments := map[string]string{}
		collectComments(t, document.YNode(), "", values, comments)
		assert.Equal(t, slices.Sorted(maps.Keys(values)), slices.Sorted(maps.Keys(comments)), name)

		data, err = os.ReadFile(filepath.Join(folder(t, name), "values.schema.json"))
		require.NoError(t, err)
		schema := map[string]any{}
		require.NoError(t, json.Unmarshal(data, &schema))
		for path, comment := range comments {
			names := []string{"properties"}
			for part := range strings.SplitSeq(path, ".") {
				names = append(names, part, "properties")
			}
			names[len(names)-1] = "description"
			description, _, err := unstructured.NestedString(schema, names...)
			require.NoError(t, err)
			assert.NotEmpty(t, comment, "comment on %s of %s", path, name)
			assert.Equal(t, comment, description, "description of %s in the schema of %s", path, name)
		}
	}
}

// collectComments collects the comments on the values of a mapping, by path. A mapping that is
// documented as a value is not descended into.
func collectComments(t *testing.T, mapping *yaml.Node, prefix string, values map[string]value, comments map[string]string) {
	t.Helper()
	for i := 0; i < len(mapping.Content); i += 2 {
		key, content := mapping.Content[i], mapping.Content[i+1]
		path := prefix + key.Value
		if _, known := values[path]; !known && content.Kind == yaml.MappingNode && len(content.Content) > 0 {
			collectComments(t, content, path+".", values, comments)
			continue
		}
		var lines []string
		for line := range strings.SplitSeq(key.HeadComment, "\n") {
			lines = append(lines, strings.TrimPrefix(line, "# "))
		}
		comments[path] = strings.Join(lines, " ")
	}
}

// nested returns values that set a path.
func nested(path string, v any) map[string]any {
	first, rest, more := strings.Cut(path, ".")
	if more {
		v = nested(rest, v)
	}
	return map[string]any{first: v}
}

// field returns a field of an object, or nil. A number selects an item of a list, -1 the last item.
func field(object *unstructured.Unstructured, path []string) any {
	if object == nil {
		return nil
	}
	var current any = object.Object
	for _, name := range path {
		switch c := current.(type) {
		case map[string]any:
			current = c[name]
		case []any:
			index, err := strconv.Atoi(name)
			if index == -1 {
				index = len(c) - 1
			}
			if err != nil || index < 0 || index >= len(c) {
				return nil
			}
			current = c[index]
		default:
			return nil
		}
	}
	return current
}
