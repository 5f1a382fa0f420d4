// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package crds tests the custom resource definitions with the code of the API server, which
// needs no cluster and takes a second.
package crds

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/runtime"
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
