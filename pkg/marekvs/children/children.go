// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package children builds the objects of a marekvs cluster: two Services, a
// PodDisruptionBudget and a StatefulSet. It has no clients. Clusters have their defaults
// (MarekvsCluster.WithDefaults).
package children

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// Ports of a node, and the names of its ports.
const (
	respPort, meshPort, gossipPort = 6379, 7373, 7946

	respName, meshName, gossipName, metricsName = "resp", "mesh", "gossip", "metrics"
)

// trafficDistribution prefers nodes in the zone of the client. Every supported version of
// Kubernetes accepts this value
// (https://kubernetes.io/docs/concepts/services-networking/service/#traffic-distribution).
const trafficDistribution = "PreferClose"

// Options has the settings of the operator that objects depend on.
type Options struct {
	// ClusterDomain is the domain of Services.
	ClusterDomain string
	// MetricsPort is the port of the metrics and of the probes.
	MetricsPort int32
}

// HeadlessName returns the name of the Service that nodes find each other with.
func HeadlessName(cluster string) string { return cluster + "-headless" }

// Selector returns the labels by which the StatefulSet selects its Pods, which cannot be changed. Pods of other
// applications may have them too: Services and the budget select by all Labels.
func Selector(cluster string) map[string]string { return map[string]string{v1alpha1.LabelApp: cluster} }

// Labels returns the labels of every object of a cluster, including its Pods and volume
// claims.
func Labels(cluster string) map[string]string {
	return map[string]string{
		v1alpha1.LabelApp:       cluster,
		v1alpha1.LabelName:      v1alpha1.ApplicationName,
		v1alpha1.LabelInstance:  cluster,
		v1alpha1.LabelManagedBy: v1alpha1.ManagerName,
	}
}

// owner returns the controller reference to a cluster. The garbage collector deletes the
// object with the cluster
// (https://kubernetes.io/docs/concepts/architecture/garbage-collection/).
func owner(cluster *v1alpha1.MarekvsCluster) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().
		WithAPIVersion(v1alpha1.SchemeGroupVersion.String()).
		WithKind(v1alpha1.ClusterKind).
		WithName(cluster.Name).
		WithUID(cluster.UID).
		WithController(true)
}

// Headless returns the Service that nodes find each other with, also before they are ready.
func Headless(cluster *v1alpha1.MarekvsCluster, options Options) *corev1ac.ServiceApplyConfiguration {
	return corev1ac.Service(HeadlessName(cluster.Name), cluster.Namespace).
		WithLabels(Labels(cluster.Name)).
		WithOwnerReferences(owner(cluster)).
		WithSpec(corev1ac.ServiceSpec().
			WithClusterIP(corev1.ClusterIPNone).
			WithPublishNotReadyAddresses(true).
			WithSelector(Labels(cluster.Name)).
			WithPorts(
				servicePort(gossipName, gossipPort, corev1.ProtocolUDP),
				servicePort(meshName, meshPort, corev1.ProtocolTCP),
				servicePort(metricsName, options.MetricsPort, corev1.ProtocolTCP),
			))
}

// Client returns the Service that clients connect to.
func Client(cluster *v1alpha1.MarekvsCluster) *corev1ac.ServiceApplyConfiguration {
	return corev1ac.Service(cluster.Name, cluster.Namespace).
		WithLabels(Labels(cluster.Name)).
		WithOwnerReferences(owner(cluster)).
		WithSpec(corev1ac.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).
			WithTrafficDistribution(trafficDistribution).
			WithSelector(Labels(cluster.Name)).
			WithPorts(servicePort(respName, respPort, corev1.ProtocolTCP)))
}

func servicePort(name string, port int32, protocol corev1.Protocol) *corev1ac.ServicePortApplyConfiguration {
	return corev1ac.ServicePort().WithName(name).WithPort(port).WithProtocol(protocol).WithTargetPort(intstr.FromString(name))
}

// Budget returns the PodDisruptionBudget. It allows one eviction at a time for any cluster
// size: if as many nodes are missing as a partition has copies, data is not available. It allows none while an eviction
// would delete a volume. It must not select Pods of others, because a Pod with two budgets is never evicted
// (https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors).
func Budget(cluster *v1alpha1.MarekvsCluster, deletesVolume bool) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	evictions := int32(1)
	if deletesVolume {
		evictions = 0
	}
	return policyv1ac.PodDisruptionBudget(cluster.Name, cluster.Namespace).
		WithLabels(Labels(cluster.Name)).
		WithOwnerReferences(owner(cluster)).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithMaxUnavailable(intstr.FromInt32(evictions)).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(Labels(cluster.Name))))
}

// IsOwned reports whether the cluster is the controller of the object.
func IsOwned(object metav1.Object, cluster *v1alpha1.MarekvsCluster) bool {
	return metav1.IsControlledBy(object, cluster)
}
