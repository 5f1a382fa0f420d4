// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package charts

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// deployment returns the only Deployment of a kustomization. A field that Deployments do not have is an
// error.
func deployment(t *testing.T, kustomization string) *appsv1.Deployment {
	t.Helper()
	var found []*appsv1.Deployment
	for _, object := range kustomize(t, kustomization) {
		if object.GetKind() == "Deployment" {
			d := &appsv1.Deployment{}
			require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, d, true))
			found = append(found, d)
		}
	}
	require.Len(t, found, 1, kustomization)
	return found[0]
}

// A lost Node takes one of the replicas, whatever was placed and replaced before, and a Pod on a lost
// Node is replaced soon. Both replicas were seen on a Node, which ScheduleAnyway allows, and without the
// tolerations no operator ran for six minutes after that Node was lost.
func TestReplicasOutliveANode(t *testing.T) {
	for _, kustomization := range []string{"operator", "external", "release", "marekvs"} {
		t.Run(kustomization, func(t *testing.T) {
			d := deployment(t, kustomization)
			assert.Greater(t, *d.Spec.Replicas, int32(1))
			spec := d.Spec.Template.Spec
			spread := map[string]corev1.TopologySpreadConstraint{}
			for _, constraint := range spec.TopologySpreadConstraints {
				spread[constraint.TopologyKey] = constraint
			}
			assert.Equal(t, corev1.TopologySpreadConstraint{
				TopologyKey: corev1.LabelHostname, MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: d.Spec.Selector,
				// Otherwise a rollout counts the Pods that it replaces, and ends with both on a Node.
				MatchLabelKeys: []string{appsv1.DefaultDeploymentUniqueLabelKey},
			}, spread[corev1.LabelHostname])
			seconds := map[string]int64{}
			for _, toleration := range spec.Tolerations {
				if toleration.Operator == corev1.TolerationOpExists && toleration.Effect == corev1.TaintEffectNoExecute {
					seconds[toleration.Key] = *toleration.TolerationSeconds
				}
			}
			assert.Equal(t, map[string]int64{corev1.TaintNodeNotReady: 30, corev1.TaintNodeUnreachable: 30}, seconds)
			assert.Positive(t, spec.Containers[0].ReadinessProbe.InitialDelaySeconds)
		})
	}
}
