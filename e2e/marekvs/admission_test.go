// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package marekvs tests the marekvs operator with the API server's own code. Tests that stop
// operators run before the parallel tests.
package marekvs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// object is a MarekvsCluster as the API server stores it.
type object = map[string]any

// admission validates objects as the API server does.
type admission struct {
	structural *schema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

func newAdmission(t *testing.T) *admission {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "manifests", "marekvs", "crd", "marekvs.io_marekvsclusters.yaml"))
	require.NoError(t, err)
	versioned := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, yaml.UnmarshalStrict(text, versioned))
	apiextensionsv1.SetDefaults_CustomResourceDefinition(versioned)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&versioned.Spec)
	definition := &apiextensions.CustomResourceDefinition{}
	require.NoError(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(versioned, definition, nil))
	definition.Status.StoredVersions = []string{"v1alpha1"}
	// The estimated cost of the rules included.
	require.Empty(t, crdvalidation.ValidateCustomResourceDefinition(t.Context(), definition))

	properties := definition.Spec.Validation.OpenAPIV3Schema
	a := &admission{}
	a.structural, err = schema.NewStructural(properties)
	require.NoError(t, err)
	a.schema, _, err = validation.NewSchemaValidator(properties)
	require.NoError(t, err)
	a.rules = cel.NewValidator(a.structural, true, celconfig.PerCallLimit)
	return a
}

// create returns the stored object, and the problems of a new object.
func (a *admission) create(ctx context.Context, new object) (object, field.ErrorList) {
	defaulting.Default(new, a.structural)
	problems := validation.ValidateCustomResource(nil, new, a.schema)
	rules, _ := a.rules.Validate(ctx, nil, a.structural, new, nil, celconfig.RuntimeCELCostBudget)
	return new, append(problems, rules...)
}

// update returns the problems of a change.
func (a *admission) update(ctx context.Context, old, new object) field.ErrorList {
	defaulting.Default(new, a.structural)
	problems := validation.ValidateCustomResourceUpdate(nil, new, old, a.schema)
	rules, _ := a.rules.Validate(ctx, nil, a.structural, new, old, celconfig.RuntimeCELCostBudget)
	return append(problems, rules...)
}

// sample is the example of the manifests.
func sample(t *testing.T) object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "manifests", "marekvs", "samples", "demo.yaml"))
	require.NoError(t, err)
	encoded, err := yaml.YAMLToJSON(text)
	require.NoError(t, err)
	read := object{}
	require.NoError(t, json.Unmarshal(encoded, &read))
	return read
}

// with sets a field of an object, whose path is separated by dots. A nil value removes it.
func with(to object, path string, value any) object {
	names := strings.Split(path, ".")
	at := to
	for _, name := range names[:len(names)-1] {
		next, ok := at[name].(object)
		if !ok {
			next = object{}
			at[name] = next
		}
		at = next
	}
	if last := names[len(names)-1]; value == nil {
		delete(at, last)
	} else {
		at[last] = value
	}
	return to
}

func TestTheSampleIsAdmitted(t *testing.T) {
	a := newAdmission(t)
	stored, problems := a.create(t.Context(), sample(t))
	assert.Empty(t, problems)
	assert.Equal(t, int64(3), stored["spec"].(object)["nodes"], "the default")
	assert.Empty(t, a.update(t.Context(), stored, with(sample(t), "spec.image", "other")))
}

func TestDefaults(t *testing.T) {
	stored, problems := newAdmission(t).create(t.Context(), object{
		"apiVersion": "marekvs.io/v1alpha1", "kind": "MarekvsCluster", "metadata": object{"name": "demo"},
		"spec": object{"image": "i", "autoscale": object{"minNodes": int64(1), "maxNodes": int64(5), "targetOpsPerNode": int64(1)}},
	})
	assert.Empty(t, problems)
	assert.Equal(t, object{
		"image": "i", "nodes": int64(3), "replicationFactor": int64(2),
		"storage": object{"size": "10Gi"}, "resources": object{"cpu": "500m", "memory": "1Gi"},
		"autoscale": object{
			"minNodes": int64(1), "maxNodes": int64(5), "targetOpsPerNode": int64(1),
			"scaleDownStabilizationSeconds": int64(300), "scaleUpCooldownSeconds": int64(60),
		},
	}, stored["spec"])
}

func TestInvalidClustersAreRejected(t *testing.T) {
	a := newAdmission(t)
	for path, values := range map[string][]any{
		"metadata.name":                                {strings.Repeat("x", 53), "a.b", "0a", "a-"},
		"spec.image":                                   {nil, ""},
		"spec.nodes":                                   {int64(0), int64(-1)},
		"spec.replicationFactor":                       {int64(0), int64(8)}, // more than maxNodes
		"spec.storage.size":                            {"banana", "0", "-1Gi", int64(0)},
		"spec.resources.cpu":                           {"banana", "0"},
		"spec.resources.memory":                        {"banana", "-1"},
		"spec.autoscale.minNodes":                      {int64(0), int64(9), nil},
		"spec.autoscale.maxNodes":                      {int64(2), nil},
		"spec.autoscale.targetOpsPerNode":              {int64(0), int64(-1), 0.5, nil},
		"spec.autoscale.targetDiskPercent":             {int64(0), int64(96)},
		"spec.autoscale.scaleDownStabilizationSeconds": {int64(-1)},
		"spec.autoscale.scaleUpCooldownSeconds":        {int64(-1)},
		"spec.hostnameSpreadWhenUnsatisfiable":         {"Maybe"},
		"spec.extraEnv.MAREKVS_SEEDS":                  {"x"},
		"spec.extraEnv.MAREKVS_ADVERTISE_IP":           {"x"},
		"spec.extraEnv.MAREKVS_REPLICAS_N":             {"1"},
		"spec.extraEnv.MAREKVS_DATA_DIR":               {"x"},
		"spec.extraEnv.MAREKVS_METRICS_ADDR":           {"x"},
	} {
		for _, value := range values {
			_, problems := a.create(t.Context(), with(sample(t), path, value))
			assert.NotEmpty(t, problems, "%s: %v", path, value)
		}
	}
}

func TestValidClustersAreAdmitted(t *testing.T) {
	a := newAdmission(t)
	for path, values := range map[string][]any{
		"metadata.name":                        {strings.Repeat("x", 52), "a", "a-0"},
		"spec.nodes":                           {int64(1), int64(1000)},
		"spec.storage.size":                    {int64(1), "1e3", "0.5Gi"},
		"spec.storage.className":               {"local-nvme"},
		"spec.resources":                       {nil, object{}},
		"spec.autoscale":                       {nil},
		"spec.autoscale.targetDiskPercent":     {int64(80)},
		"spec.hostnameSpreadWhenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
		"spec.extraEnv.MAREKVS_ANYTHING_ELSE":  {"x"},
		"spec.tolerations": {[]any{object{"operator": "Exists"},
			object{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": int64(1)}}},
	} {
		for _, value := range values {
			_, problems := a.create(t.Context(), with(sample(t), path, value))
			assert.Empty(t, problems, "%s: %v", path, value)
		}
	}
}

// While autoscale is set, a change of nodes is rejected, which kubectl scale
// makes.
func TestChangesThatAreRejected(t *testing.T) {
	a := newAdmission(t)
	for path, value := range map[string]any{
		"spec.storage.size":      "20Gi",
		"spec.storage.className": "other",
		"spec.nodes":             int64(5),
	} {
		old, problems := a.create(t.Context(), sample(t))
		require.Empty(t, problems)
		assert.NotEmpty(t, a.update(t.Context(), old, with(sample(t), path, value)), path)
	}
	for name, old := range map[string]object{"fixed": with(sample(t), "spec.autoscale", nil), "autoscale removed": sample(t)} {
		old, problems := a.create(t.Context(), old)
		require.Empty(t, problems)
		scaled := with(with(sample(t), "spec.autoscale", nil), "spec.nodes", int64(5))
		assert.Empty(t, a.update(t.Context(), old, scaled), name)
	}
}
