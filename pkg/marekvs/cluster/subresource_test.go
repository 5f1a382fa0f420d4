// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	manifests "nstance.dev/operator/manifests/marekvs"
	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// scalePaths returns where the definition has what the scale subresource serves.
func scalePaths(t *testing.T) (spec, status, selector []string) {
	t.Helper()
	var definition apiextensionsv1.CustomResourceDefinition
	require.NoError(t, yaml.UnmarshalStrict(manifests.CRD, &definition))
	scale := definition.Spec.Versions[0].Subresources.Scale
	require.NotNil(t, scale)
	require.NotNil(t, scale.LabelSelectorPath)
	split := func(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }
	return split(scale.SpecReplicasPath), split(scale.StatusReplicasPath), split(*scale.LabelSelectorPath)
}

// content returns the cluster as the API server stores it.
func (h *harness) content() map[string]any {
	h.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(h.cluster())
	require.NoError(h.t, err)
	return content
}

// What the API server reads for GET of the scale subresource is what the operator writes: the
// number of nodes, and a selector of their Pods, which an autoscaler of Kubernetes reads. What it
// writes for a PATCH is the wanted size.
func TestTheScaleSubresourceServesTheStatus(t *testing.T) {
	specPath, statusPath, selectorPath := scalePaths(t)
	h := newHarness(t, sized(4))
	check := func(wanted int64) {
		t.Helper()
		content := h.content()
		served, found, err := unstructured.NestedInt64(content, specPath...)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, wanted, served, "spec.replicas")
		served, found, err = unstructured.NestedInt64(content, statusPath...)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, int64(*h.set().Spec.Replicas), served, "status.replicas")
		text, _, err := unstructured.NestedString(content, selectorPath...)
		require.NoError(t, err)
		selector, err := labels.Parse(text)
		require.NoError(t, err)
		own, err := metav1.LabelSelectorAsSelector(h.set().Spec.Selector)
		require.NoError(t, err)
		assert.Equal(t, own.String(), selector.String())
		require.NotEmpty(t, h.pods())
		for _, pod := range h.pods() {
			assert.True(t, selector.Matches(labels.Set(pod.Labels)), pod.Name)
		}
		assert.False(t, selector.Matches(labels.Set{"app": "other"}), "it selects no other Pod")
		assert.False(t, selector.Empty())
	}
	check(4)
	for _, size := range []int64{6, 3} {
		content := h.content()
		require.NoError(t, unstructured.SetNestedField(content, size, specPath...))
		changed := &v1alpha1.MarekvsCluster{}
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(content, changed))
		h.kinds.Update(clusterResource, changed)
		for range 40 {
			h.step()
			check(size)
			h.advance(period)
		}
		assert.Equal(t, int32(size), *h.set().Spec.Replicas)
	}
}
