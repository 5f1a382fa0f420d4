// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1alpha1

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestWithDefaults(t *testing.T) {
	quantity := func(text string) *resource.Quantity { return ptr.To(resource.MustParse(text)) }
	for name, c := range map[string]struct{ spec, want MarekvsClusterSpec }{
		"nothing is set": {
			MarekvsClusterSpec{},
			MarekvsClusterSpec{
				Nodes: 3, ReplicationFactor: 2, Storage: Storage{Size: quantity("10Gi")},
				Resources: Resources{CPU: quantity("500m"), Memory: quantity("1Gi")}, ReclaimAfterSeconds: 86400, ProgressDeadlineSeconds: 600,
			},
		},
		"an autoscaler": {
			MarekvsClusterSpec{Autoscale: &Autoscale{MinNodes: 3}},
			MarekvsClusterSpec{
				Nodes: 3, ReplicationFactor: 2, Storage: Storage{Size: quantity("10Gi")},
				Resources: Resources{CPU: quantity("500m"), Memory: quantity("1Gi")},
				Autoscale: &Autoscale{MinNodes: 3, ScaleDownStabilizationSeconds: ptr.To[int32](300), ScaleUpCooldownSeconds: ptr.To[int32](60)}, ReclaimAfterSeconds: 86400, ProgressDeadlineSeconds: 600,
			},
		},
		"a part is set": {
			MarekvsClusterSpec{
				Storage:   Storage{ClassName: "local-nvme"},
				Resources: Resources{Memory: quantity("2Gi")},
				Autoscale: &Autoscale{ScaleDownStabilizationSeconds: ptr.To[int32](0)},
			},
			MarekvsClusterSpec{
				Nodes: 3, ReplicationFactor: 2, Storage: Storage{Size: quantity("10Gi"), ClassName: "local-nvme"},
				Resources: Resources{CPU: quantity("500m"), Memory: quantity("2Gi")},
				Autoscale: &Autoscale{ScaleDownStabilizationSeconds: ptr.To[int32](0), ScaleUpCooldownSeconds: ptr.To[int32](60)}, ReclaimAfterSeconds: 86400, ProgressDeadlineSeconds: 600,
			},
		},
		"everything is set": {
			MarekvsClusterSpec{
				Nodes: 4, ReplicationFactor: 1, Storage: Storage{Size: quantity("1Gi")},
				Resources: Resources{CPU: quantity("1"), Memory: quantity("3Gi")},
				Autoscale: &Autoscale{ScaleDownStabilizationSeconds: ptr.To[int32](1), ScaleUpCooldownSeconds: ptr.To[int32](0)}, ReclaimAfterSeconds: 1, ProgressDeadlineSeconds: 2,
			},
			MarekvsClusterSpec{
				Nodes: 4, ReplicationFactor: 1, Storage: Storage{Size: quantity("1Gi")},
				Resources: Resources{CPU: quantity("1"), Memory: quantity("3Gi")},
				Autoscale: &Autoscale{ScaleDownStabilizationSeconds: ptr.To[int32](1), ScaleUpCooldownSeconds: ptr.To[int32](0)}, ReclaimAfterSeconds: 1, ProgressDeadlineSeconds: 2,
			},
		},
	} {
		cluster := &MarekvsCluster{Spec: c.spec}
		before := cluster.DeepCopy()
		assert.Equal(t, c.want, cluster.WithDefaults().Spec, name)
		assert.Equal(t, before, cluster, "%s: the cluster of the cache is unchanged", name)
	}
}

// defaultsOf collects the defaults of a schema by path.
func defaultsOf(schema *apiextensionsv1.JSONSchemaProps, path string, into map[string]string) {
	if schema.Default != nil {
		into[path] = string(schema.Default.Raw)
	}
	for name := range schema.Properties {
		defaultsOf(ptr.To(schema.Properties[name]), path+"."+name, into)
	}
	if schema.Items != nil {
		defaultsOf(schema.Items.Schema, path+"[]", into)
	}
}

// The CRD has the defaults that must not change for a cluster that exists, and no others.
func TestDefaultsOfTheDefinition(t *testing.T) {
	found := map[string]string{}
	defaultsOf(readDefinition(t).Spec.Versions[0].Schema.OpenAPIV3Schema, "", found)
	encode := func(value any) string {
		encoded, err := json.Marshal(value)
		require.NoError(t, err)
		return string(encoded)
	}
	assert.Equal(t, map[string]string{
		".spec.nodes":             encode(DefaultNodes),
		".spec.replicationFactor": encode(DefaultReplicationFactor),
		".spec.storage":           "{}",
		".spec.storage.size":      encode(DefaultStorageSize),
	}, found)
}

// A client sends no empty object for a field that its user did not set. The API server would
// reject an empty spread.
func TestUnsetFieldsAreNotSent(t *testing.T) {
	encoded, err := json.Marshal(&MarekvsCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo"}, Spec: MarekvsClusterSpec{Image: "i"}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"metadata": {"name": "demo"}, "spec": {"image": "i"}}`, string(encoded))
}
