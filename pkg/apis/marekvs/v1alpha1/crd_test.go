// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

func readManifest(t *testing.T, name string, into any) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "manifests", "marekvs", name))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, into))
	return text
}

func readDefinition(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	definition := &apiextensionsv1.CustomResourceDefinition{}
	readManifest(t, "crd/marekvs.io_marekvsclusters.yaml", definition)
	return definition
}

func TestDefinition(t *testing.T) {
	definition := readDefinition(t)
	assert.Equal(t, "marekvsclusters."+GroupName, definition.Name)
	assert.Equal(t, []string{"mkv"}, definition.Spec.Names.ShortNames)
	assert.Equal(t, []string{"marekvs"}, definition.Spec.Names.Categories)
	assert.Equal(t, ClusterKind, definition.Spec.Names.Kind)
	require.Len(t, definition.Spec.Versions, 1)
	version := definition.Spec.Versions[0]
	assert.Equal(t, SchemeGroupVersion.Version, version.Name)
	assert.Equal(t, &apiextensionsv1.CustomResourceSubresources{
		Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
		Scale: &apiextensionsv1.CustomResourceSubresourceScale{
			SpecReplicasPath: ".spec.nodes", StatusReplicasPath: ".status.replicas", LabelSelectorPath: ptr.To(".status.selector"),
		},
	}, version.Subresources)
	var columns []string
	for _, column := range version.AdditionalPrinterColumns {
		text := column.Name + " " + column.JSONPath + " " + column.Type
		if column.Priority > 0 {
			text += " -o wide"
		}
		columns = append(columns, text)
	}
	assert.Equal(t, []string{
		"Desired .status.desiredNodes integer",
		"Ready .status.readyNodes integer",
		"Underrep .status.underreplicatedPartitions integer",
		"Ops/s .status.opsPerSecond string",
		"Phase .status.phase string",
		"Age .metadata.creationTimestamp date",
		"Message .status.message string -o wide",
	}, columns)
}

// The example must not change: it equals the example in the specification of the operator.
func TestSample(t *testing.T) {
	var cluster MarekvsCluster
	text := readManifest(t, "samples/demo.yaml", &cluster)
	digest := sha256.Sum256(text)
	assert.Equal(t, "9ecde2fcbc9c083de23bb5e27ff9d10930f6f97275edd517ecc8f39ebc16c0ef", hex.EncodeToString(digest[:]))
	assert.Equal(t, int64(5000), cluster.Spec.Autoscale.TargetOpsPerNode)
	assert.Equal(t, "10Gi", cluster.Spec.Storage.Size.String())
	assert.Equal(t, map[string]string{"RUST_LOG": "info"}, cluster.Spec.ExtraEnv)
}

// Users who may view or edit the objects of a namespace may do so with clusters. Only the operator writes
// a status.
func TestRolesOfUsers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "manifests", "marekvs", "user_roles.yaml"))
	require.NoError(t, err)
	granted := map[string][]string{}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var role rbacv1.ClusterRole
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), &role))
		for label := range role.Labels {
			for _, rule := range role.Rules {
				assert.Equal(t, []string{GroupName}, rule.APIGroups)
				for _, resource := range rule.Resources {
					key := strings.TrimPrefix(label, "rbac.authorization.k8s.io/aggregate-to-") + " " + resource
					granted[key] = append(granted[key], rule.Verbs...)
				}
			}
		}
	}
	read, write := []string{"get", "list", "watch"}, []string{"create", "update", "patch", "delete", "deletecollection"}
	assert.Equal(t, map[string][]string{
		"view marekvsclusters": read, "view marekvsclusters/status": read, "view marekvsclusters/scale": read,
		"edit marekvsclusters": write, "edit marekvsclusters/scale": {"update", "patch"},
		"admin marekvsclusters": write, "admin marekvsclusters/scale": {"update", "patch"},
	}, granted)
	var kustomization struct{ Resources []string }
	manifest, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "manifests", "marekvs", "kustomization.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(manifest, &kustomization))
	assert.Contains(t, kustomization.Resources, "user_roles.yaml")
}
