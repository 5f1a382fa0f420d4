// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
)

// gossip returns the gossip cluster in the template of the StatefulSet.
func (h *harness) gossip() string { return children.GossipClusterOf(&h.set().Spec.Template.Spec) }

// withoutGossip removes the gossip cluster from a StatefulSet, as an earlier version of the operator
// created it.
func (h *harness) withoutGossip() *appsv1.StatefulSet {
	set := h.set()
	delete(set.Annotations, v1alpha1.AnnotationGossipCluster)
	set.Annotations[v1alpha1.AnnotationTemplateHash] = children.TemplateHash(h.cluster().WithDefaults(), h.Children, "")
	container := &set.Spec.Template.Spec.Containers[0]
	var env []corev1.EnvVar
	for _, variable := range container.Env {
		if variable.Name != "MAREKVS_CLUSTER" {
			env = append(env, variable)
		}
	}
	require.Less(h.t, len(env), len(container.Env))
	container.Env = env
	return set
}

func TestANewClusterHasItsOwnGossipCluster(t *testing.T) {
	h := newHarness(t, nil)
	want := children.GossipCluster(h.cluster())
	assert.Equal(t, want, h.gossip())
	assert.NotEmpty(t, h.cluster().UID)

	// A new name of it in the template is taken back.
	set := h.set()
	for i, variable := range set.Spec.Template.Spec.Containers[0].Env {
		if variable.Name == "MAREKVS_CLUSTER" {
			set.Spec.Template.Spec.Containers[0].Env[i].Value = "other"
		}
	}
	h.builtIn.Update(setResource, set)
	h.step()
	assert.Equal(t, want, h.gossip())
}

// Another gossip cluster would split a running cluster in two, one Pod after the other.
func TestAnExistingClusterKeepsItsGossipCluster(t *testing.T) {
	h := newHarness(t, nil)
	h.builtIn.Update(setResource, h.withoutGossip())
	for range 3 {
		h.pass()
		assert.Empty(t, h.gossip())
		assert.Equal(t, h.set().Status.CurrentRevision, h.set().Status.UpdateRevision, "no update begins")
	}
	assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase)
	h.change(func(c *v1alpha1.MarekvsCluster) { c.Spec.Image = "other" })
	h.settle()
	assert.Empty(t, h.gossip(), "also in an update")
}

// The new StatefulSet adopts the Pods, which run on.
func TestAStatefulSetThatWasDeletedWithoutItsPodsKeepsTheirGossipCluster(t *testing.T) {
	for name, c := range map[string]struct {
		environment []corev1.EnvVar
		want        string
	}{
		"a value":     {[]corev1.EnvVar{{Name: "MAREKVS_CLUSTER", Value: "former"}}, "former"},
		"the default": {nil, ""},
	} {
		h := newHarness(t, nil)
		for _, pod := range h.pods() {
			pod.OwnerReferences = nil
			pod.Spec.Containers = []corev1.Container{{Name: children.ContainerName, Env: c.environment}}
			h.builtIn.Update(podResource, &pod)
		}
		h.builtIn.Remove(setResource, "ns", "demo")
		h.show()
		_, err := h.syncStale(t.Context())
		require.NoError(t, err)
		assert.Equal(t, c.want, h.gossip(), name)
	}
}

// Pods of a cluster that was deleted and created again end with their StatefulSet.
func TestPodsOfAnotherStatefulSetDoNotCount(t *testing.T) {
	h := newHarness(t, nil)
	want := h.gossip()
	h.builtIn.Remove(setResource, "ns", "demo")
	h.show()
	_, err := h.syncStale(t.Context())
	require.NoError(t, err)
	assert.Equal(t, want, h.gossip())
}
