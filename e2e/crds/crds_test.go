// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package crds tests the custom resource definitions with the code of the API server, which
// needs no cluster and takes a second.
package crds

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// The API server rejects a definition if it cannot bound the cost of a rule.
func TestDefinitionsAreValid(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, apiextensions.AddToScheme(scheme))
	require.NoError(t, apiextensionsv1.AddToScheme(scheme))
	var files []string
	for _, pattern := range []string{"manifests/crd/infrastructure*.yaml", "manifests/marekvs/crd/marekvs.io*.yaml"} {
		found, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(pattern)))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			definition := &apiextensionsv1.CustomResourceDefinition{}
			require.NoError(t, yaml.UnmarshalStrict(text, definition))
			scheme.Default(definition)
			internal := &apiextensions.CustomResourceDefinition{}
			require.NoError(t, scheme.Convert(definition, internal, nil))
			assert.Empty(t, validation.ValidateCustomResourceDefinition(t.Context(), internal))
		})
	}
}

// The rules about candidates, as the API server evaluates them.
func TestRulesOfCandidates(t *testing.T) {
	const base, rest = `{name: base, market: Standard, maxReplicas: 2}`, `{name: rest, instanceType: m7i.large, market: Spot}`
	of := func(candidates string) string { return "candidates: [" + candidates + "]" }
	validate := validatorOf(t, "manifests/crd/infrastructure.cluster.x-k8s.io_nstancemachinepools.yaml")
	for spec, want := range map[string]string{
		of(base + "," + rest): "",
		of(rest):              "",
		of("{name: base, maxReplicas: 30%}," + rest):                  "",
		of("{name: base, maxReplicas: 0}," + rest):                    "",
		of(rest) + "\nreturnAfterSeconds: 600":                        "",
		of(rest) + "\nreturnAfterSeconds: 599":                        "should be greater than or equal to 600",
		of(rest) + "\ninstanceType: m7i.large":                        "instanceType cannot be set together with candidates",
		"returnAfterSeconds: 600":                                     "returnAfterSeconds needs candidates",
		of(base):                                                      "the last candidate must not have maxReplicas",
		of(rest + "," + rest):                                         "candidates must not contain a name twice",
		of(""):                                                        "should have at least 1 items",
		of("{name: base, maxReplicas: -1}," + rest):                   "must be a number from 0 on",
		of("{name: base, maxReplicas: 101%}," + rest):                 "should match",
		of("{name: base, maxReplicas: some}," + rest):                 "should match",
		of("{name: Base}"):                                            "should match",
		of("{market: Spot}"):                                          "Required value",
		of("{name: base, market: on-demand}"):                         "should match",
		of(strings.TrimSuffix(strings.Repeat("{name: a},", 17), ",")): "must have at most 16 items",
	} {
		got := validate("apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: NstanceMachinePool\nmetadata: {name: batch}\nspec:\n  group: batch\n  shards: [a]\n  " +
			strings.ReplaceAll(spec, "\n", "\n  "))
		if want == "" {
			assert.Empty(t, got, spec)
		} else {
			assert.Contains(t, got, want, spec)
		}
	}
}

// validatorOf returns a function that returns the errors of an object by a definition.
func validatorOf(t *testing.T, file string) func(object string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
	require.NoError(t, err)
	definition := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, yaml.UnmarshalStrict(text, definition))
	internal := &apiextensions.JSONSchemaProps{}
	require.NoError(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(definition.Spec.Versions[0].Schema.OpenAPIV3Schema, internal, nil))
	structural, err := schema.NewStructural(internal)
	require.NoError(t, err)
	rules := cel.NewValidator(structural, true, celconfig.PerCallLimit)
	types, _, err := schemavalidation.NewSchemaValidator(internal)
	require.NoError(t, err)
	return func(object string) string {
		var decoded map[string]any
		text, err := yaml.YAMLToJSON([]byte(object))
		require.NoError(t, err)
		// Numbers become integers, as in the API server.
		require.NoError(t, json.Unmarshal(text, &decoded))
		found := schemavalidation.ValidateCustomResource(nil, decoded, types)
		ruled, _ := rules.Validate(t.Context(), nil, structural, decoded, nil, celconfig.RuntimeCELCostBudget)
		if all := append(found, ruled...).ToAggregate(); all != nil {
			return all.Error()
		}
		return ""
	}
}
