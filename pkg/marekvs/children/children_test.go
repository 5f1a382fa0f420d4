// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package children

import (
	"encoding/json"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	manifests "nstance.dev/operator/manifests/marekvs"
	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/storetest"
)

var options = Options{ClusterDomain: "cluster.local", MetricsPort: 9121}

func demo() *v1alpha1.MarekvsCluster {
	cluster := &v1alpha1.MarekvsCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "1"},
		Spec:       v1alpha1.MarekvsClusterSpec{Image: "i", ExtraEnv: map[string]string{"B": "2", "A": "1", "MAREKVS_SEEDS": "x"}},
	}
	return cluster.WithDefaults()
}

// decode returns an apply configuration as the object that it describes.
func decode[T any](t *testing.T, configuration any) *T {
	t.Helper()
	encoded, err := json.Marshal(configuration)
	require.NoError(t, err)
	object := new(T)
	require.NoError(t, json.Unmarshal(encoded, object))
	return object
}

func TestEveryChildBelongsToTheCluster(t *testing.T) {
	for name, child := range map[string]metav1.Object{
		"demo-headless": decode[corev1.Service](t, Headless(demo(), options)),
		"demo":          decode[corev1.Service](t, Client(demo())),
		"demo ":         decode[policyv1.PodDisruptionBudget](t, Budget(demo(), false)),
		"demo  ":        decode[appsv1.StatefulSet](t, StatefulSet(demo(), options, "gossip", Size{Replicas: 3})),
	} {
		assert.Equal(t, "ns", child.GetNamespace(), name)
		assert.Equal(t, Labels("demo"), child.GetLabels(), name)
		assert.True(t, IsOwned(child, demo()), name)
		assert.Nil(t, child.GetOwnerReferences()[0].BlockOwnerDeletion, name)
	}
}

func TestServices(t *testing.T) {
	headless := decode[corev1.Service](t, Headless(demo(), options))
	assert.Equal(t, corev1.ClusterIPNone, headless.Spec.ClusterIP)
	assert.True(t, headless.Spec.PublishNotReadyAddresses)
	ports := map[string]int32{}
	for _, port := range headless.Spec.Ports {
		ports[port.Name] = port.Port
	}
	assert.Equal(t, map[string]int32{"gossip": 7946, "mesh": 7373, "metrics": 9121}, ports)
	client := decode[corev1.Service](t, Client(demo()))
	assert.Equal(t, int32(6379), client.Spec.Ports[0].Port)
	assert.Equal(t, ptr.To("PreferClose"), client.Spec.TrafficDistribution)
	// An application that is named like the cluster may have the label app, too.
	assert.Equal(t, Labels("demo"), client.Spec.Selector)
	assert.Equal(t, Labels("demo"), headless.Spec.Selector)
}

// One eviction at a time, whatever the size.
func TestBudget(t *testing.T) {
	budget := decode[policyv1.PodDisruptionBudget](t, Budget(demo(), false))
	assert.Equal(t, 1, budget.Spec.MaxUnavailable.IntValue())
	assert.Equal(t, 0, decode[policyv1.PodDisruptionBudget](t, Budget(demo(), true)).Spec.MaxUnavailable.IntValue())
	assert.Nil(t, budget.Spec.MinAvailable)
	assert.Equal(t, Labels("demo"), budget.Spec.Selector.MatchLabels, "a Pod of others with two budgets could not be evicted")
	pod := decode[appsv1.StatefulSet](t, StatefulSet(demo(), options, "gossip", Size{})).Spec.Template
	assert.Equal(t, Labels("demo"), pod.Labels)
}

func TestStatefulSet(t *testing.T) {
	set := decode[appsv1.StatefulSet](t, StatefulSet(demo(), options, "gossip", Size{Replicas: 5, Partition: 2, Annotations: map[string]string{"a": "b"}}))
	assert.Equal(t, ptr.To[int32](5), set.Spec.Replicas, "the size is part of every apply")
	assert.Equal(t, ptr.To[int32](2), set.Spec.UpdateStrategy.RollingUpdate.Partition)
	assert.Equal(t, appsv1.ParallelPodManagement, set.Spec.PodManagementPolicy)
	assert.Equal(t, "demo-headless", set.Spec.ServiceName)
	assert.Equal(t, map[string]string{"app": "demo"}, set.Spec.Selector.MatchLabels, "it cannot be changed")
	assert.Equal(t, map[string]string{"a": "b", v1alpha1.AnnotationTemplateHash: TemplateHash(demo(), options, "gossip"), v1alpha1.AnnotationGossipCluster: "gossip"}, set.Annotations)
	claim := set.Spec.VolumeClaimTemplates[0]
	assert.Equal(t, "data", claim.Name)
	assert.Equal(t, Labels("demo"), claim.Labels)
	assert.Empty(t, claim.OwnerReferences, "a volume outlives the cluster")
	assert.Nil(t, claim.Spec.StorageClassName)
	assert.Equal(t, "10Gi", claim.Spec.Resources.Requests.Storage().String())

	pod := set.Spec.Template.Spec
	container := pod.Containers[0]
	environment := map[string]string{}
	for _, variable := range container.Env {
		_, twice := environment[variable.Name]
		assert.False(t, twice, "%s is set twice", variable.Name)
		environment[variable.Name] = variable.Value
	}
	assert.Equal(t, map[string]string{
		"MAREKVS_SEEDS": "demo-headless.ns.svc.cluster.local:7946", "MAREKVS_ADVERTISE_IP": "auto",
		"MAREKVS_REPLICAS_N": "2", "MAREKVS_DATA_DIR": "/data", "MAREKVS_CLUSTER": "gossip", "A": "1", "B": "2",
	}, environment)
	assert.Equal(t, "500m", container.Resources.Requests.Cpu().String())
	assert.True(t, container.Resources.Limits.Cpu().IsZero())
	assert.Equal(t, "1Gi", container.Resources.Limits.Memory().String())
	assert.Equal(t, "/drain", container.Lifecycle.PreStop.HTTPGet.Path)
	startup := time.Duration(container.StartupProbe.FailureThreshold*container.StartupProbe.PeriodSeconds) * time.Second
	assert.GreaterOrEqual(t, startup, 24*time.Hour, "a node may copy its data for so long before it is ready")
	// The restricted Pod Security Standard requires this
	// (https://kubernetes.io/docs/concepts/security/pod-security-standards/).
	assert.True(t, *pod.SecurityContext.RunAsNonRoot)
	assert.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
	assert.False(t, *container.SecurityContext.AllowPrivilegeEscalation)
	assert.Equal(t, []corev1.Capability{"ALL"}, container.SecurityContext.Capabilities.Drop)
	assert.False(t, *pod.AutomountServiceAccountToken)
}

func TestPlacement(t *testing.T) {
	cluster := demo()
	pod := decode[appsv1.StatefulSet](t, StatefulSet(cluster, options, "gossip", Size{})).Spec.Template.Spec
	assert.Equal(t, corev1.ScheduleAnyway, pod.TopologySpreadConstraints[0].WhenUnsatisfiable)
	assert.Nil(t, pod.TopologySpreadConstraints[0].NodeTaintsPolicy)
	cluster.Spec.Spread.Hostname.WhenUnsatisfiable = corev1.DoNotSchedule
	cluster.Spec.NodeSelector = map[string]string{"disk": "nvme"}
	cluster.Spec.Tolerations = []v1alpha1.Toleration{{Key: "a", Operator: "Equal", Value: "b", Effect: "NoExecute", TolerationSeconds: ptr.To[int64](1)}}
	pod = decode[appsv1.StatefulSet](t, StatefulSet(cluster, options, "gossip", Size{})).Spec.Template.Spec
	assert.Equal(t, corev1.DoNotSchedule, pod.TopologySpreadConstraints[0].WhenUnsatisfiable)
	assert.Equal(t, ptr.To(corev1.NodeInclusionPolicyHonor), pod.TopologySpreadConstraints[0].NodeTaintsPolicy)
	assert.Equal(t, cluster.Spec.NodeSelector, pod.NodeSelector)
	assert.Equal(t, []corev1.Toleration{{Key: "a", Operator: "Equal", Value: "b", Effect: "NoExecute", TolerationSeconds: ptr.To[int64](1)}}, pod.Tolerations)
}

func TestTheHashFollowsTheTemplateAndNotTheSize(t *testing.T) {
	hash := TemplateHash(demo(), options, "gossip")
	bigger := demo()
	bigger.Spec.Nodes = 8
	assert.Equal(t, hash, TemplateHash(bigger, options, "gossip"))
	for name, change := range map[string]func(*v1alpha1.MarekvsClusterSpec){
		"image": func(s *v1alpha1.MarekvsClusterSpec) { s.Image = "other" },
		"env":   func(s *v1alpha1.MarekvsClusterSpec) { s.ExtraEnv["A"] = "3" },
		"RF":    func(s *v1alpha1.MarekvsClusterSpec) { s.ReplicationFactor = 3 },
	} {
		changed := demo()
		change(&changed.Spec)
		assert.NotEqual(t, hash, TemplateHash(changed, options, "gossip"), name)
	}
}

// The nodes serve their metrics and probes at the port that the operator and the kubelet use. The
// default of the store is not set: it would update the Pods of clusters that exist.
func TestThePortOfTheMetrics(t *testing.T) {
	variables := func(port int32) map[string]string {
		set := decode[appsv1.StatefulSet](t, StatefulSet(demo(), Options{ClusterDomain: "cluster.local", MetricsPort: port}, "gossip", Size{}))
		found := map[string]string{}
		for _, variable := range set.Spec.Template.Spec.Containers[0].Env {
			found[variable.Name] = variable.Value
		}
		for _, exposed := range set.Spec.Template.Spec.Containers[0].Ports {
			if exposed.Name == "metrics" {
				assert.Equal(t, port, exposed.ContainerPort)
			}
		}
		return found
	}
	assert.Equal(t, "0.0.0.0:9999", variables(9999)["MAREKVS_METRICS_ADDR"])
	assert.NotContains(t, variables(DefaultMetricsPort), "MAREKVS_METRICS_ADDR")
}

// While Pods are replaced, the StatefulSet controller updates none by itself.
func TestUpdateStrategy(t *testing.T) {
	strategy := func(size Size) appsv1.StatefulSetUpdateStrategy {
		return decode[appsv1.StatefulSet](t, StatefulSet(demo(), options, "gossip", size)).Spec.UpdateStrategy
	}
	assert.Equal(t, appsv1.StatefulSetUpdateStrategy{Type: "OnDelete"}, strategy(Size{Partition: 2, OnDelete: true}), "the API server rejects a partition")
	assert.Equal(t, ptr.To[int32](2), strategy(Size{Partition: 2}).RollingUpdate.Partition)
}

// The factor and the port of a Pod are known from what the cache keeps of it.
func TestWhatTheCacheKeepsOfAPod(t *testing.T) {
	spec := decode[appsv1.StatefulSet](t, StatefulSet(demo(), options, "gossip", Size{})).Spec.Template.Spec
	spec.NodeName = "node"
	kept := Trim(&spec)
	assert.Equal(t, int32(2), FactorOf(&kept))
	assert.Equal(t, int32(9121), MetricsPortOf(&kept))
	assert.Equal(t, corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{
		Name: "marekvs", Env: []corev1.EnvVar{{Name: "MAREKVS_REPLICAS_N", Value: "2"}},
		Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9121}},
	}}}, kept)
	assert.Zero(t, FactorOf(&corev1.PodSpec{}))
	assert.Zero(t, MetricsPortOf(&corev1.PodSpec{}))
}

// Fields of the Pods that the user sets. Without them the template is as before: no Pod is updated.
func TestPodFields(t *testing.T) {
	cluster := demo()
	before := TemplateHash(cluster, options, "gossip")
	cluster.Spec.ImagePullSecrets = []v1alpha1.LocalReference{{Name: "registry"}}
	cluster.Spec.PriorityClassName = "high"
	cluster.Spec.PodLabels = map[string]string{"team": "a", "app": "other"}
	cluster.Spec.PodAnnotations = map[string]string{"note": "b"}
	cluster.Spec.EnvFrom = []v1alpha1.EnvFromSource{
		{Prefix: "P_", SecretRef: v1alpha1.LocalReference{Name: "secret"}}, {ConfigMapRef: v1alpha1.LocalReference{Name: "map"}},
	}
	cluster.Spec.RestartedAt = ptr.To(metav1.NewTime(time.Date(2030, 1, 2, 4, 5, 6, 7, time.FixedZone("one hour", 3600))))
	cluster.Spec.SecretEnv = []v1alpha1.SecretVariable{
		{Name: "MAREKVS_REQUIREPASS", SecretKeyRef: v1alpha1.SecretKeyReference{Name: "passwords", Key: "clients"}},
		{Name: "A", SecretKeyRef: v1alpha1.SecretKeyReference{Name: "passwords", Key: "a"}},
	}
	assert.NotEqual(t, before, TemplateHash(cluster, options, "gossip"))
	set := decode[appsv1.StatefulSet](t, StatefulSet(cluster, options, "gossip", Size{}))
	template := set.Spec.Template
	assert.Equal(t, "a", template.Labels["team"])
	assert.Equal(t, "demo", template.Labels["app"], "the selector needs it")
	assert.NotContains(t, set.Labels, "team")
	assert.Equal(t, map[string]string{"note": "b", "marekvs.io/restarted-at": "2030-01-02T03:05:06Z"}, template.Annotations)
	assert.Equal(t, &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "passwords"}, Key: "clients"},
		variablesOf(t, cluster, "gossip")["MAREKVS_REQUIREPASS"].ValueFrom.SecretKeyRef)
	assert.Equal(t, "1", variablesOf(t, cluster, "gossip")["A"].Value, "of extraEnv")
	turned := cluster.DeepCopy()
	slices.Reverse(turned.Spec.SecretEnv)
	assert.Equal(t, TemplateHash(cluster, options, "gossip"), TemplateHash(turned, options, "gossip"), "another order updates no Pod")
	assert.Equal(t, []corev1.LocalObjectReference{{Name: "registry"}}, template.Spec.ImagePullSecrets)
	assert.Equal(t, "high", template.Spec.PriorityClassName)
	assert.Equal(t, []corev1.EnvFromSource{
		{Prefix: "P_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "secret"}}},
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "map"}}},
	}, template.Spec.Containers[0].EnvFrom)
	assert.Equal(t, before, TemplateHash(demo(), options, "gossip"))
	assert.Empty(t, decode[appsv1.StatefulSet](t, StatefulSet(demo(), options, "gossip", Size{})).Spec.Template.Annotations)
}

// variablesOf returns the variables of the container of a cluster, and expects each once.
func variablesOf(t *testing.T, cluster *v1alpha1.MarekvsCluster, gossip string) map[string]corev1.EnvVar {
	t.Helper()
	set := decode[appsv1.StatefulSet](t, StatefulSet(cluster, options, gossip, Size{}))
	variables := map[string]corev1.EnvVar{}
	for _, variable := range set.Spec.Template.Spec.Containers[0].Env {
		assert.NotContains(t, variables, variable.Name)
		variables[variable.Name] = variable
	}
	return variables
}

// Every variable that extraEnv must not have is set if there is envFrom, so that no entry of a Secret has an effect: all
// nodes would have one identity, or would be in the gossip cluster of others.
func TestEntriesOfEnvFromDoNotChangeTheIdentity(t *testing.T) {
	cluster := demo()
	cluster.Spec.EnvFrom = []v1alpha1.EnvFromSource{{SecretRef: v1alpha1.LocalReference{Name: "secret"}}}
	guarded := variablesOf(t, cluster, "gossip")
	definition := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, yaml.Unmarshal(manifests.CRD, definition))
	schema := definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["extraEnv"]
	var reserved []string
	for _, rule := range schema.XValidations {
		reserved = append(reserved, regexp.MustCompile(`MAREKVS_[A-Z_]+|HOSTNAME`).FindAllString(rule.Rule, -1)...)
	}
	require.Len(t, reserved, 12)
	for _, name := range reserved {
		if name != "HOSTNAME" { // which the store ignores if it has MAREKVS_NODE_ID
			assert.Contains(t, guarded, name)
		}
	}
	assert.Equal(t, "metadata.labels['apps.kubernetes.io/pod-index']", guarded["MAREKVS_NODE_ID"].ValueFrom.FieldRef.FieldPath)
	for name, want := range map[string]string{
		"MAREKVS_RESP_ADDR": "0.0.0.0:6379", "MAREKVS_MESH_ADDR": "0.0.0.0:7373", "MAREKVS_GOSSIP_ADDR": "0.0.0.0:7946",
		"MAREKVS_METRICS_ADDR": "0.0.0.0:9121", "MAREKVS_AE_PARTITIONS_PER_ROUND": "0", "MAREKVS_CLUSTER": "gossip",
	} {
		assert.Equal(t, want, guarded[name].Value, name)
	}
	assert.Equal(t, storetest.DefaultGossipCluster, variablesOf(t, cluster, "")["MAREKVS_CLUSTER"].Value, "of a StatefulSet of an earlier version")
	assert.NotContains(t, variablesOf(t, demo(), "gossip"), "MAREKVS_NODE_ID")
	assert.NotContains(t, variablesOf(t, demo(), ""), "MAREKVS_CLUSTER")
}

// The hash is in the annotations of existing StatefulSets. Another hash for the same spec would update the
// Pods of every cluster that exists.
func TestAnExistingClusterIsNotUpdated(t *testing.T) {
	assert.Equal(t, "3qcteor3v1s72", TemplateHash(demo(), options, "gossip"))
}

// The affinity has the fields of Kubernetes, and a change of it updates the Pods.
func TestAffinity(t *testing.T) {
	cluster := demo()
	before := TemplateHash(cluster, options, "gossip")
	cluster.Spec.Affinity = v1alpha1.Affinity{
		NodeAffinity: v1alpha1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{
				{MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"nvme"}}}},
			}},
			PreferredDuringSchedulingIgnoredDuringExecution: []v1alpha1.PreferredNodes{{Weight: 7, Preference: v1alpha1.NodeSelectorTerm{
				MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: "fast", Operator: corev1.NodeSelectorOpExists}},
			}}},
		},
		PodAntiAffinity: v1alpha1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []v1alpha1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "demo"}}, TopologyKey: corev1.LabelHostname,
				Namespaces: []string{"other"}, NamespaceSelector: &metav1.LabelSelector{},
			}},
			PreferredDuringSchedulingIgnoredDuringExecution: []v1alpha1.PreferredPods{{
				Weight: 9, PodAffinityTerm: v1alpha1.PodAffinityTerm{TopologyKey: corev1.LabelTopologyZone},
			}},
		},
	}
	assert.NotEqual(t, before, TemplateHash(cluster, options, "gossip"))
	assert.Equal(t, &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"nvme"}}}},
			}},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 7, Preference: corev1.NodeSelectorTerm{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "fast", Operator: corev1.NodeSelectorOpExists}},
			}}},
		},
		PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "demo"}}, TopologyKey: corev1.LabelHostname,
				Namespaces: []string{"other"}, NamespaceSelector: &metav1.LabelSelector{},
			}},
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
				Weight: 9, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelTopologyZone},
			}},
		},
	}, decode[appsv1.StatefulSet](t, StatefulSet(cluster, options, "gossip", Size{})).Spec.Template.Spec.Affinity)
}

// The claims of an existing StatefulSet cannot be changed: every apply has their size.
func TestTheSizeOfTheClaims(t *testing.T) {
	cluster := demo()
	cluster.Spec.Storage.Size = ptr.To(resource.MustParse("20Gi"))
	set := decode[appsv1.StatefulSet](t, StatefulSet(cluster, options, "gossip", Size{}))
	assert.Equal(t, "20Gi", StorageOf(set).String())
	set = decode[appsv1.StatefulSet](t, StatefulSet(cluster, options, "gossip", Size{Storage: ptr.To(resource.MustParse("10Gi"))}))
	assert.Equal(t, "10Gi", StorageOf(set).String())
	assert.Nil(t, StorageOf(&appsv1.StatefulSet{}))
	assert.Equal(t, TemplateHash(demo(), options, "gossip"), TemplateHash(cluster, options, "gossip"), "no Pod is updated")
}
