// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package charts

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// policy is the annotation of objects that Helm leaves when a release is uninstalled
// (https://helm.sh/docs/howto/charts_tips_and_tricks/#tell-helm-not-to-uninstall-a-resource).
const policy = "helm.sh/resource-policy"

// A chart has the objects of a kustomization. The namespace is made before a release is
// installed, and Helm is told to leave the kinds.
func TestChartHasTheObjectsOfTheKustomization(t *testing.T) {
	// What clusterctl replaces in a release.
	variables := strings.NewReplacer(
		"${NSTANCE_NAMESPACE:=nstance-system}", "nstance-prod",
		"${NSTANCE_CLUSTER_ID:=dev}", "prod",
		"${NSTANCE_TENANT:=default}", "team",
	)
	for name, test := range map[string]struct {
		chart, namespace string
		values           map[string]any
		kustomization    []string
		image            string
	}{
		"the operator": {
			chart: operatorChart, namespace: namespace, kustomization: []string{"operator"}, image: "docker.io/library/nstance-operator:dev",
		},
		"the operator in a management cluster": {
			chart: operatorChart, namespace: namespace, kustomization: []string{"external"}, image: "docker.io/library/nstance-operator:dev",
			values: map[string]any{"workload": map[string]any{"endpoint": "https://workload.example.com:6443"}},
		},
		"the operator of another cluster, tenant and namespace": {
			chart: operatorChart, namespace: "nstance-prod", kustomization: []string{"release"}, image: "docker.io/library/nstance-operator:VERSION",
			values: map[string]any{"clusterID": "prod", "tenant": "team", "image": map[string]any{"tag": "VERSION"}},
		},
		"marekvs": {
			chart: marekvsChart, namespace: "marekvs-system", kustomization: []string{"marekvs"}, image: "docker.io/library/marekvs-operator:dev",
		},
		"the server of a shard": {
			chart: serverChart, namespace: "nstance-servers", kustomization: []string{"server"}, image: "docker.io/library/nstance-server:dev",
			values: required(serverChart),
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := kustomize(t, test.kustomization...)
			for key, object := range want {
				data, err := object.MarshalJSON()
				require.NoError(t, err)
				replaced := &unstructured.Unstructured{}
				require.NoError(t, replaced.UnmarshalJSON([]byte(variables.Replace(string(data)))))
				delete(want, key)
				if replaced.GetKind() != "Namespace" {
					require.NoError(t, want.add(replaced))
				}
			}
			for _, object := range want {
				if object.GetKind() == "CustomResourceDefinition" {
					annotations := object.GetAnnotations()
					annotations[policy] = "keep"
					object.SetAnnotations(annotations)
				}
				if object.GetKind() == "Deployment" {
					firstContainer(t, object)["image"] = test.image
				}
			}
			got := render(t, load(t, folder(t, test.chart)), test.namespace, test.values)
			require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
			for key, object := range want {
				assert.Equal(t, text(t, object), text(t, got[key]), key)
			}
		})
	}
}

// firstContainer returns the first container of a Deployment.
func firstContainer(t *testing.T, deployment *unstructured.Unstructured) map[string]any {
	t.Helper()
	return pod(t, deployment)["containers"].([]any)[0].(map[string]any)
}

// pod returns the spec of the Pods of a Deployment.
func pod(t *testing.T, deployment *unstructured.Unstructured) map[string]any {
	t.Helper()
	require.NotNil(t, deployment)
	spec, found, err := unstructured.NestedFieldNoCopy(deployment.Object, "spec", "template", "spec")
	require.NoError(t, err)
	require.True(t, found)
	return spec.(map[string]any)
}

// text returns an object as JSON. The variables of the environment are sorted, and the label
// with which clusterctl finds the objects of a release is left out.
func text(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	if object == nil {
		return ""
	}
	object = object.DeepCopy()
	labels := object.GetLabels()
	delete(labels, "cluster.x-k8s.io/provider")
	if len(labels) == 0 {
		labels = nil
	}
	object.SetLabels(labels)
	if object.GetKind() == "Deployment" {
		env, _ := firstContainer(t, object)["env"].([]any)
		slices.SortFunc(env, func(a, b any) int {
			return strings.Compare(a.(map[string]any)["name"].(string), b.(map[string]any)["name"].(string))
		})
	}
	data, err := json.MarshalIndent(object, "", " ")
	require.NoError(t, err)
	return string(data)
}

// "helm uninstall" deletes what "kubectl delete -k manifests/uninstall" deletes: neither the
// kinds, with which all pools would be deleted, nor what the operator reaches the shards with.
func TestUninstallationKeepsKindsAndConfiguration(t *testing.T) {
	want := slices.Sorted(maps.Keys(kustomize(t, "uninstall")))
	rendered := render(t, load(t, folder(t, operatorChart)), namespace, map[string]any{
		"shards":    map[string]any{"us-west-2a": "[2001:db8::a]:8993"},
		"clusterCA": certificate,
	})
	maps.DeleteFunc(rendered, func(_ string, object *unstructured.Unstructured) bool {
		return object.GetAnnotations()[policy] == "keep"
	})
	assert.Equal(t, want, slices.Sorted(maps.Keys(rendered)))
}

// Two releases have no object in common, and each refers to its own.
func TestTwoReleasesHaveNoObjectInCommon(t *testing.T) {
	operator := load(t, folder(t, operatorChart))
	first := render(t, operator, namespace, nil)
	second := render(t, operator, "nstance-team", map[string]any{
		"tenant": "team", "nameSuffix": "team", "crds": map[string]any{"install": false},
	})
	for key := range second {
		assert.NotContains(t, first, key)
	}
	for _, rendered := range []objects{first, second} {
		expectReferences(t, rendered)
	}
	env := firstContainer(t, second["Deployment/nstance-team/nstance-operator"])["env"]
	assert.Contains(t, env, map[string]any{"name": "NSTANCE_WEBHOOK_CONFIGURATION", "value": "nstance-operator-team"})
	rules, _, err := unstructured.NestedSlice(second["ClusterRole/nstance-operator-team"].Object, "rules")
	require.NoError(t, err)
	assert.Equal(t, []any{"nstance-operator-team"}, rules[0].(map[string]any)["resourceNames"])
}

// The servers of two shards can be in one namespace: neither Deployment nor Service selects a Pod of
// the other shard.
func TestServersOfTwoShardsInANamespace(t *testing.T) {
	server := load(t, folder(t, serverChart))
	var labels, selectors []map[string]any
	all := objects{}
	for _, shard := range []string{"us-west-2a", "us-west-2b"} {
		values := required(serverChart)
		values["shard"], values["nameSuffix"] = shard, shard
		rendered := render(t, server, namespace, values)
		for _, object := range rendered {
			require.NoError(t, all.add(object))
		}
		deployment := rendered["Deployment/"+namespace+"/nstance-server-"+shard]
		labels = append(labels, field(deployment, []string{"spec", "template", "metadata", "labels"}).(map[string]any))
		selectors = append(selectors,
			field(deployment, []string{"spec", "selector", "matchLabels"}).(map[string]any),
			field(rendered["Service/"+namespace+"/nstance-server-"+shard], []string{"spec", "selector"}).(map[string]any))
	}
	for i, selector := range selectors {
		assert.Equal(t, labels[i/2], selector)
		assert.NotEqual(t, labels[1-i/2], selector)
	}
}

// A server can have its storage in a folder only if the folder is on a volume that other servers
// have too.
func TestServerWithAStorageInAFolder(t *testing.T) {
	server := load(t, folder(t, serverChart))
	values := func(storage map[string]any) map[string]any {
		return map[string]any{"shard": "a", "storage": storage}
	}
	rendered := render(t, server, namespace, values(map[string]any{"type": "file", "bucket": "/bucket", "claimName": "bucket"}))
	deployment := rendered["Deployment/"+namespace+"/nstance-server"]
	assert.Equal(t, []any{"--shard=a", "--storage=file", "--bucket=/bucket", "--cache-dir=/cache"}, firstContainer(t, deployment)["args"])
	assert.Contains(t, firstContainer(t, deployment)["volumeMounts"], map[string]any{"name": "storage", "mountPath": "/bucket"})
	assert.Equal(t, int64(65532), field(deployment, []string{"spec", "template", "spec", "securityContext", "fsGroup"}))
	for _, storage := range []map[string]any{
		{"type": "file", "bucket": "/bucket"},
		{"type": "file", "bucket": "bucket", "claimName": "bucket"},
		{"type": "s3", "bucket": "bucket", "claimName": "bucket"},
	} {
		_, err := tryRender(server, namespace, values(storage))
		assert.ErrorContains(t, err, "values don't meet the specifications of the schema", storage)
	}
}

// expectReferences fails if an object refers to another one that the release does not have.
func expectReferences(t *testing.T, rendered objects) {
	t.Helper()
	for key, object := range rendered {
		for _, reference := range references(t, object) {
			assert.Contains(t, rendered, reference, key)
		}
	}
}

func references(t *testing.T, object *unstructured.Unstructured) (keys []string) {
	t.Helper()
	own := object.GetNamespace()
	switch object.GetKind() {
	case "RoleBinding", "ClusterRoleBinding":
		role := object.Object["roleRef"].(map[string]any)
		kind, name := role["kind"].(string), role["name"].(string)
		if kind == "Role" {
			name = own + "/" + name
		}
		keys = append(keys, kind+"/"+name)
		for _, entry := range object.Object["subjects"].([]any) {
			subject := entry.(map[string]any)
			keys = append(keys, "ServiceAccount/"+subject["namespace"].(string)+"/"+subject["name"].(string))
		}
	case "Deployment":
		if account, found := pod(t, object)["serviceAccountName"]; found {
			keys = append(keys, "ServiceAccount/"+own+"/"+account.(string))
		}
	case "ValidatingAdmissionPolicyBinding":
		name, _, err := unstructured.NestedString(object.Object, "spec", "policyName")
		require.NoError(t, err)
		keys = append(keys, "ValidatingAdmissionPolicy/"+name)
	case "ValidatingWebhookConfiguration":
		for _, webhook := range object.Object["webhooks"].([]any) {
			service, _, err := unstructured.NestedStringMap(webhook.(map[string]any), "clientConfig", "service")
			require.NoError(t, err)
			keys = append(keys, "Service/"+service["namespace"]+"/"+service["name"])
		}
	}
	return keys
}

// The linter of Helm finds nothing but that there is no icon.
func TestLint(t *testing.T) {
	for _, name := range allCharts {
		linter := lint.All(folder(t, name), required(name), namespace, true)
		for _, message := range linter.Messages {
			assert.Equal(t, support.InfoSev, message.Severity, "%s: %v", name, message)
		}
	}
}
