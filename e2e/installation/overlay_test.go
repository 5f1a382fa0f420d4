// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"nstance.dev/operator/e2e/controlplane"
)

// clusterScoped matches the kinds of the manifests whose objects have no namespace.
var clusterScoped = regexp.MustCompile("^(Cluster|CustomResource|Namespace$|Validating)")

// keys returns the objects by kind, namespace and name.
func keys(objects []*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	found := map[string]*unstructured.Unstructured{}
	for _, object := range objects {
		key := object.GetKind() + "/" + object.GetName()
		if !clusterScoped.MatchString(object.GetKind()) {
			key = object.GetKind() + "/" + object.GetNamespace() + "/" + object.GetName()
		}
		found[key] = object
	}
	return found
}

// A second operator changes no object of the first one: both share the kinds and the ClusterRoles, which are
// the same for all operators but one.
func TestSecondOperatorHasObjectsOfItsOwn(t *testing.T) {
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	base := filepath.Join(root, "manifests", "operator")
	objects, err := controlplane.Render(base)
	require.NoError(t, err)
	first := keys(objects)

	dir := t.TempDir()
	operator, err := filepath.Rel(dir, base)
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, second.Execute(&text, map[string]string{
		"Operator": operator, "Settings": filepath.Join(filepath.Dir(operator), "settings"), "Webhook": webhookURL(1),
		"Namespace": secondNamespace, "ClusterID": ClusterID, "Tenant": secondTenant,
	}))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text.Bytes(), 0o600))
	objects, err = controlplane.Render(dir)
	require.NoError(t, err)
	own := keys(objects)
	assert.Len(t, own, len(first))
	for key, object := range own {
		data, err := object.MarshalJSON()
		require.NoError(t, err)
		assert.NotContains(t, string(data), Namespace, key)
		switch object.GetKind() {
		case "CustomResourceDefinition":
			continue
		case "ClusterRole":
			if object.GetName() != "nstance-operator-"+secondTenant {
				assert.Equal(t, first[key], object, key)
				continue
			}
		case "ValidatingAdmissionPolicyBinding":
			policy, _, _ := unstructured.NestedString(object.Object, "spec", "policyName")
			assert.Contains(t, own, "ValidatingAdmissionPolicy/"+policy, key)
		}
		assert.NotContains(t, first, key)
	}
}
