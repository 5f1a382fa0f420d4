// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package children

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// gossipCluster is the variable of the gossip cluster of a node. Nodes with another value ignore each
// other; its default is the same for all clusters (github.com/yannick/marekvs, commit defc648,
// crates/marekvs-server/src/main.rs:181, crates/marekvs-cluster/src/lib.rs:206).
const gossipCluster, defaultGossipCluster = "MAREKVS_CLUSTER", "marekvs"

// metricsAddress is the variable of the address of the metrics and the probes; its default is
// DefaultMetricsPort on all addresses. It is not set to its default without envFrom, because that would update the
// Pods of existing clusters.
const metricsAddress = "MAREKVS_METRICS_ADDR"

// DefaultMetricsPort is the port of the metrics and the probes of the store.
const DefaultMetricsPort = 9121

// GossipCluster returns the gossip cluster of a new cluster. It has the UID, because clusters of the
// same name in several Kubernetes clusters may share a network.
func GossipCluster(cluster *v1alpha1.MarekvsCluster) string {
	return cluster.Namespace + "/" + cluster.Name + "/" + string(cluster.UID)
}

// GossipClusterOf returns the gossip cluster of existing Pods, empty if they have the default of the
// store.
func GossipClusterOf(pod *corev1.PodSpec) string { return variableOf(pod, gossipCluster) }

// replicationFactor is the variable of the number of copies.
const replicationFactor = "MAREKVS_REPLICAS_N"

// FactorOf returns the number of copies that an existing Pod was started with, 0 if it is unknown.
func FactorOf(pod *corev1.PodSpec) int32 {
	factor, err := strconv.ParseInt(variableOf(pod, replicationFactor), 10, 32)
	if err != nil {
		return 0
	}
	return int32(factor)
}

// variableOf returns the value of an environment variable of existing Pods, empty if it is not set.
func variableOf(pod *corev1.PodSpec, name string) string {
	for _, c := range pod.Containers {
		for _, variable := range c.Env {
			if c.Name == ContainerName && variable.Name == name {
				return variable.Value
			}
		}
	}
	return ""
}

// podIndex is the field of a Pod with its ordinal
// (https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#pod-index-label).
const podIndex = "metadata.labels['" + appsv1.PodIndexLabel + "']"

// guards returns variables that decide about the identity, the ports and the rounds of a node, with the values that the
// store has without them (github.com/yannick/marekvs, commit defc648, crates/marekvs-server/src/main.rs:36-98,
// crates/marekvs-repl/src/lib.rs:281). No rule of the API server sees the entries of envFrom: an entry for
// MAREKVS_NODE_ID would give all nodes one identity. An entry does not override a variable that is set
// (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#environment-variables). Without envFrom
// the variables are not set, because they would update the Pods of existing clusters.
func guards() []*corev1ac.EnvVarApplyConfiguration {
	return []*corev1ac.EnvVarApplyConfiguration{
		corev1ac.EnvVar().WithName("MAREKVS_NODE_ID").WithValueFrom(corev1ac.EnvVarSource().
			WithFieldRef(corev1ac.ObjectFieldSelector().WithFieldPath(podIndex))),
		listener("MAREKVS_RESP_ADDR", respPort),
		listener("MAREKVS_MESH_ADDR", meshPort),
		listener("MAREKVS_GOSSIP_ADDR", gossipPort),
		corev1ac.EnvVar().WithName("MAREKVS_AE_PARTITIONS_PER_ROUND").WithValue("0"),
	}
}

// listener returns a variable with an address that a node listens at.
func listener(name string, port int32) *corev1ac.EnvVarApplyConfiguration {
	return corev1ac.EnvVar().WithName(name).WithValue(fmt.Sprintf("0.0.0.0:%d", port))
}

// environmentFrom returns the Secrets and ConfigMaps with more variables of the container.
func environmentFrom(cluster *v1alpha1.MarekvsCluster) []*corev1ac.EnvFromSourceApplyConfiguration {
	var all []*corev1ac.EnvFromSourceApplyConfiguration
	for _, source := range cluster.Spec.EnvFrom {
		from := corev1ac.EnvFromSource()
		if source.Prefix != "" {
			from.WithPrefix(source.Prefix)
		}
		if source.SecretRef.Name != "" {
			from.WithSecretRef(corev1ac.SecretEnvSource().WithName(source.SecretRef.Name))
		}
		if source.ConfigMapRef.Name != "" {
			from.WithConfigMapRef(corev1ac.ConfigMapEnvSource().WithName(source.ConfigMapRef.Name))
		}
		all = append(all, from)
	}
	return all
}

// environment returns the variables of the container. Variables of the operator override
// variables of the user: server-side apply rejects a duplicate name.
func environment(cluster *v1alpha1.MarekvsCluster, options Options, gossip string) []*corev1ac.EnvVarApplyConfiguration {
	seeds := fmt.Sprintf("%s.%s.svc.%s:%d", HeadlessName(cluster.Name), cluster.Namespace, options.ClusterDomain, gossipPort)
	own := []*corev1ac.EnvVarApplyConfiguration{
		corev1ac.EnvVar().WithName("MAREKVS_SEEDS").WithValue(seeds),
		corev1ac.EnvVar().WithName("MAREKVS_ADVERTISE_IP").WithValue("auto"),
		corev1ac.EnvVar().WithName(replicationFactor).WithValue(strconv.Itoa(int(cluster.Spec.ReplicationFactor))),
		corev1ac.EnvVar().WithName("MAREKVS_DATA_DIR").WithValue(dataDir),
	}
	guarded := len(cluster.Spec.EnvFrom) > 0
	if gossip != "" || guarded {
		own = append(own, corev1ac.EnvVar().WithName(gossipCluster).WithValue(cmp.Or(gossip, defaultGossipCluster)))
	}
	if guarded || options.MetricsPort != DefaultMetricsPort {
		own = append(own, listener(metricsAddress, options.MetricsPort))
	}
	if guarded {
		own = append(own, guards()...)
	}
	names := map[string]bool{}
	for _, variable := range own {
		names[*variable.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(cluster.Spec.ExtraEnv)) {
		if !names[name] {
			own = append(own, corev1ac.EnvVar().WithName(name).WithValue(cluster.Spec.ExtraEnv[name]))
		}
		names[name] = true
	}
	secrets := slices.SortedFunc(slices.Values(cluster.Spec.SecretEnv), func(a, b v1alpha1.SecretVariable) int { return cmp.Compare(a.Name, b.Name) })
	for _, variable := range secrets {
		if !names[variable.Name] {
			own = append(own, corev1ac.EnvVar().WithName(variable.Name).WithValueFrom(corev1ac.EnvVarSource().
				WithSecretKeyRef(corev1ac.SecretKeySelector().WithName(variable.SecretKeyRef.Name).WithKey(variable.SecretKeyRef.Key))))
		}
	}
	return own
}
