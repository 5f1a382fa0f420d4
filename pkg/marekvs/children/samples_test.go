// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package children

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// readSample reads the documents of a sample, in their order.
func readSample(t *testing.T, name string, into ...any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "manifests", "marekvs", "samples", name))
	require.NoError(t, err)
	documents := strings.Split(string(text), "\n---\n")
	require.Len(t, documents, len(into))
	for i, document := range documents {
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), into[i]))
	}
}

// The autoscaler sets the size of the cluster beside it, which has no autoscale, and asks for no size that the cluster does
// not have: nodes are at least one more than copies.
func TestTheSampleOfAnAutoscaler(t *testing.T) {
	var cluster v1alpha1.MarekvsCluster
	var autoscaler autoscalingv2.HorizontalPodAutoscaler
	readSample(t, "horizontal_pod_autoscaler.yaml", &cluster, &autoscaler)
	assert.Nil(t, cluster.Spec.Autoscale)
	assert.Equal(t, autoscalingv2.CrossVersionObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.ClusterKind, Name: cluster.Name,
	}, autoscaler.Spec.ScaleTargetRef)
	wanted := cluster.WithDefaults()
	assert.Equal(t, wanted.Spec.ReplicationFactor+1, *autoscaler.Spec.MinReplicas)
	require.Len(t, autoscaler.Spec.Metrics, 1)
	resource := autoscaler.Spec.Metrics[0].Resource
	require.NotNil(t, resource.Target.AverageUtilization)
	pod := decode[appsv1.StatefulSet](t, StatefulSet(wanted, options, "gossip", Size{})).Spec.Template.Spec
	assert.Contains(t, pod.Containers[0].Resources.Requests, resource.Name, "a utilization is a share of the request")
}

// The policy selects the nodes of the cluster, and each of their ports may be called, by whom it is for.
func TestTheSampleOfANetworkPolicy(t *testing.T) {
	var policy networkingv1.NetworkPolicy
	readSample(t, "network_policy.yaml", &policy)
	cluster := demo()
	pod := decode[appsv1.StatefulSet](t, StatefulSet(cluster, options, "gossip", Size{})).Spec.Template
	assert.Equal(t, Labels(cluster.Name), policy.Spec.PodSelector.MatchLabels)
	for name, value := range policy.Spec.PodSelector.MatchLabels {
		assert.Equal(t, value, pod.Labels[name])
	}
	assert.Equal(t, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, policy.Spec.PolicyTypes)
	callers := map[string]networkingv1.NetworkPolicyPeer{}
	for _, rule := range policy.Spec.Ingress {
		require.Len(t, rule.From, 1)
		for _, port := range rule.Ports {
			protocol := corev1.ProtocolTCP
			if port.Protocol != nil {
				protocol = *port.Protocol
			}
			callers[port.Port.String()+"/"+string(protocol)] = rule.From[0]
		}
	}
	var ports []string
	for _, port := range pod.Spec.Containers[0].Ports {
		name := port.Name + "/" + string(port.Protocol)
		assert.Contains(t, callers, name)
		ports = append(ports, name)
	}
	assert.Len(t, callers, len(ports))
	for _, name := range []string{"gossip/UDP", "mesh/TCP"} {
		assert.Equal(t, Labels(cluster.Name), callers[name].PodSelector.MatchLabels, name)
	}
	assert.Equal(t, map[string]string{"app.kubernetes.io/name": "marekvs-operator"}, callers["metrics/TCP"].PodSelector.MatchLabels)
	assert.Equal(t, map[string]string{"kubernetes.io/metadata.name": "marekvs-system"}, callers["metrics/TCP"].NamespaceSelector.MatchLabels)
}
