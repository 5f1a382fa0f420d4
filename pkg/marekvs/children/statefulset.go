// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package children

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
)

const (
	// ContainerName is the name of the only container.
	ContainerName = "marekvs"
	// volumeName is the name of the volume and the prefix of the name of its claim.
	volumeName = "data"
	dataDir    = "/data"
	// user is the id of the user and of the group that nodes run as.
	user = 65534
	// gracePeriod is how long a node may take to hand over and write its data, in seconds.
	gracePeriod = 60
	// startupTries is how often a node may fail its startup probe, every probePeriod
	// seconds: a day. A node that joins is not ready before it has the data of its partitions, and
	// waits for that without a limit (github.com/yannick/marekvs, commit defc648,
	// crates/marekvs-server/src/main.rs:370). If the kubelet ended it, it would begin again with what is
	// missing, after a delay that grows.
	startupTries, probePeriod = 43_200, 2
)

// MetricsPortOf returns the port of the metrics of an existing Pod, 0 if it is unknown.
func MetricsPortOf(pod *corev1.PodSpec) int32 {
	for _, c := range pod.Containers {
		for _, port := range c.Ports {
			if c.Name == ContainerName && port.Name == metricsName {
				return port.ContainerPort
			}
		}
	}
	return 0
}

// Trim returns the fields of a Pod that FactorOf and MetricsPortOf read, and its Node, so that a cache
// takes less memory.
func Trim(pod *corev1.PodSpec) corev1.PodSpec {
	kept := corev1.PodSpec{NodeName: pod.NodeName}
	for _, c := range pod.Containers {
		if c.Name != ContainerName {
			continue
		}
		own := corev1.Container{Name: c.Name}
		for _, variable := range c.Env {
			if variable.Name == replicationFactor {
				own.Env = []corev1.EnvVar{{Name: variable.Name, Value: variable.Value}}
			}
		}
		for _, port := range c.Ports {
			if port.Name == metricsName {
				own.Ports = []corev1.ContainerPort{{Name: port.Name, ContainerPort: port.ContainerPort}}
			}
		}
		kept.Containers = []corev1.Container{own}
	}
	return kept
}

// Size has the fields of a StatefulSet that package scale decides.
type Size struct {
	Replicas, Partition int32
	// OnDelete is true if the StatefulSet controller is to update no Pod by itself.
	OnDelete bool
	// Annotations has the times of the last changes of the size.
	Annotations map[string]string
	// Storage is the size of the claims of an existing StatefulSet, which cannot be changed; nil for
	// the size of the spec.
	Storage *resource.Quantity
}

// StatefulSet returns the StatefulSet. It always sets replicas: server-side apply would
// reset a field that is left out
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/). It also sets that claims are kept when their
// Pods are removed, which is the default, so that no other writer can set that they are deleted. gossip is the gossip
// cluster, which must be the same in every apply; empty for the default of the store.
func StatefulSet(cluster *v1alpha1.MarekvsCluster, options Options, gossip string, size Size) *appsv1ac.StatefulSetApplyConfiguration {
	annotations := map[string]string{
		v1alpha1.AnnotationTemplateHash:  TemplateHash(cluster, options, gossip),
		v1alpha1.AnnotationGossipCluster: gossip,
	}
	maps.Copy(annotations, size.Annotations)
	return appsv1ac.StatefulSet(cluster.Name, cluster.Namespace).
		WithLabels(Labels(cluster.Name)).
		WithAnnotations(annotations).
		WithOwnerReferences(owner(cluster)).
		WithSpec(appsv1ac.StatefulSetSpec().
			WithReplicas(size.Replicas).
			WithServiceName(HeadlessName(cluster.Name)).
			WithPodManagementPolicy(appsv1.ParallelPodManagement).
			WithUpdateStrategy(strategy(size)).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(cluster.Name))).
			WithTemplate(template(cluster, options, gossip)).
			WithVolumeClaimTemplates(claim(cluster, size)).
			WithPersistentVolumeClaimRetentionPolicy(appsv1ac.StatefulSetPersistentVolumeClaimRetentionPolicy().
				WithWhenScaled(appsv1.RetainPersistentVolumeClaimRetentionPolicyType).
				WithWhenDeleted(appsv1.RetainPersistentVolumeClaimRetentionPolicyType)))
}

func strategy(size Size) *appsv1ac.StatefulSetUpdateStrategyApplyConfiguration {
	if size.OnDelete {
		return appsv1ac.StatefulSetUpdateStrategy().WithType(appsv1.OnDeleteStatefulSetStrategyType)
	}
	return appsv1ac.StatefulSetUpdateStrategy().
		WithType(appsv1.RollingUpdateStatefulSetStrategyType).
		WithRollingUpdate(appsv1ac.RollingUpdateStatefulSetStrategy().WithPartition(size.Partition))
}

// TemplateHash returns the hash of the template of a cluster.
func TemplateHash(cluster *v1alpha1.MarekvsCluster, options Options, gossip string) string {
	encoded, err := json.Marshal(template(cluster, options, gossip))
	if err != nil {
		panic(fmt.Sprintf("encode a template: %v", err)) // it consists of plain values
	}
	hash := fnv.New64a()
	_, _ = hash.Write(encoded)
	return strconv.FormatUint(hash.Sum64(), 36)
}

// StorageOf returns the size of the volume claims that an existing StatefulSet creates, nil if it creates
// none.
func StorageOf(set *appsv1.StatefulSet) *resource.Quantity {
	for _, claim := range set.Spec.VolumeClaimTemplates {
		if size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]; ok && claim.Name == volumeName {
			return &size
		}
	}
	return nil
}

func claim(cluster *v1alpha1.MarekvsCluster, size Size) *corev1ac.PersistentVolumeClaimApplyConfiguration {
	storage := cmp.Or(size.Storage, cluster.Spec.Storage.Size)
	spec := corev1ac.PersistentVolumeClaimSpec().
		WithAccessModes(corev1.ReadWriteOnce).
		WithResources(corev1ac.VolumeResourceRequirements().WithRequests(corev1.ResourceList{corev1.ResourceStorage: *storage}))
	if class := cluster.Spec.Storage.ClassName; class != "" {
		spec.WithStorageClassName(class)
	}
	return (&corev1ac.PersistentVolumeClaimApplyConfiguration{}).
		WithName(volumeName).WithLabels(Labels(cluster.Name)).WithSpec(spec)
}

func template(cluster *v1alpha1.MarekvsCluster, options Options, gossip string) *corev1ac.PodTemplateSpecApplyConfiguration {
	spec := corev1ac.PodSpec().
		WithTerminationGracePeriodSeconds(gracePeriod).
		WithAutomountServiceAccountToken(false).
		WithSecurityContext(corev1ac.PodSecurityContext().
			WithRunAsNonRoot(true).WithRunAsUser(user).WithRunAsGroup(user).WithFSGroup(user).
			WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
		WithTopologySpreadConstraints(hostnameSpread(cluster), spread(cluster, corev1.LabelTopologyZone, corev1.ScheduleAnyway)).
		WithContainers(container(cluster, options, gossip))
	if len(cluster.Spec.NodeSelector) > 0 {
		spec.WithNodeSelector(cluster.Spec.NodeSelector)
	}
	for _, t := range cluster.Spec.Tolerations {
		toleration := corev1ac.Toleration()
		toleration.TolerationSeconds = t.TolerationSeconds
		if t.Key != "" {
			toleration.WithKey(t.Key)
		}
		if t.Operator != "" {
			toleration.WithOperator(corev1.TolerationOperator(t.Operator))
		}
		if t.Value != "" {
			toleration.WithValue(t.Value)
		}
		if t.Effect != "" {
			toleration.WithEffect(t.Effect)
		}
		spec.WithTolerations(toleration)
	}
	for _, secret := range cluster.Spec.ImagePullSecrets {
		spec.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(secret.Name))
	}
	if class := cluster.Spec.PriorityClassName; class != "" {
		spec.WithPriorityClassName(class)
	}
	if !equality.Semantic.DeepEqual(cluster.Spec.Affinity, v1alpha1.Affinity{}) {
		spec.WithAffinity(controller.ApplyConfiguration[corev1ac.AffinityApplyConfiguration](cluster.Spec.Affinity))
	}
	result := corev1ac.PodTemplateSpec().
		WithAnnotations(cluster.Spec.PodAnnotations).
		WithLabels(cluster.Spec.PodLabels).WithLabels(Labels(cluster.Name)).
		WithSpec(spec)
	if at := cluster.Spec.RestartedAt; at != nil {
		result.WithAnnotations(map[string]string{v1alpha1.AnnotationRestartedAt: at.UTC().Format(time.RFC3339)})
	}
	return result
}

func hostnameSpread(cluster *v1alpha1.MarekvsCluster) *corev1ac.TopologySpreadConstraintApplyConfiguration {
	mode := cluster.Spec.Spread.Hostname.WhenUnsatisfiable
	if mode == "" {
		return spread(cluster, corev1.LabelHostname, corev1.ScheduleAnyway)
	}
	return spread(cluster, corev1.LabelHostname, mode).
		WithNodeTaintsPolicy(corev1.NodeInclusionPolicyHonor)
}

func spread(cluster *v1alpha1.MarekvsCluster, key string, mode corev1.UnsatisfiableConstraintAction) *corev1ac.TopologySpreadConstraintApplyConfiguration {
	return corev1ac.TopologySpreadConstraint().
		WithMaxSkew(1).WithTopologyKey(key).WithWhenUnsatisfiable(mode).
		WithLabelSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(cluster.Name)))
}

func container(cluster *v1alpha1.MarekvsCluster, options Options, gossip string) *corev1ac.ContainerApplyConfiguration {
	cpu, memory := *cluster.Spec.Resources.CPU, *cluster.Spec.Resources.Memory
	get := func(path string) *corev1ac.HTTPGetActionApplyConfiguration {
		return corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromString(metricsName))
	}
	return corev1ac.Container().
		WithName(ContainerName).
		WithImage(cluster.Spec.Image).
		WithPorts(
			containerPort(respName, respPort, corev1.ProtocolTCP),
			containerPort(meshName, meshPort, corev1.ProtocolTCP),
			containerPort(gossipName, gossipPort, corev1.ProtocolUDP),
			containerPort(metricsName, options.MetricsPort, corev1.ProtocolTCP)).
		WithEnv(environment(cluster, options, gossip)...).
		WithEnvFrom(environmentFrom(cluster)...).
		WithVolumeMounts(corev1ac.VolumeMount().WithName(volumeName).WithMountPath(dataDir)).
		// A CPU limit would throttle the node and delay commands.
		WithResources(corev1ac.ResourceRequirements().
			WithRequests(corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory}).
			WithLimits(corev1.ResourceList{corev1.ResourceMemory: memory})).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))).
		WithLifecycle(corev1ac.Lifecycle().WithPreStop(corev1ac.LifecycleHandler().WithHTTPGet(get("/drain")))).
		WithStartupProbe(corev1ac.Probe().WithHTTPGet(get("/ready")).WithPeriodSeconds(probePeriod).WithFailureThreshold(startupTries)).
		WithReadinessProbe(corev1ac.Probe().WithHTTPGet(get("/ready")).WithPeriodSeconds(probePeriod)).
		WithLivenessProbe(corev1ac.Probe().WithHTTPGet(get("/alive")).WithInitialDelaySeconds(10).WithPeriodSeconds(5))
}

func containerPort(name string, port int32, protocol corev1.Protocol) *corev1ac.ContainerPortApplyConfiguration {
	return corev1ac.ContainerPort().WithName(name).WithContainerPort(port).WithProtocol(protocol)
}
