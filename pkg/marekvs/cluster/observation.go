// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/observe"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// readPods returns the Pods that the StatefulSet controls. Other Pods with the same labels
// are not included.
func (c *Controller) readPods(set *appsv1.StatefulSet) []*corev1.Pod {
	pods := controller.Indexed[corev1.Pod](c.Informers.Pods.GetIndexer(), byController, string(set.UID))
	return slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return !belongsTo(pod, set) })
}

// belongsTo reports whether a Pod belongs to a StatefulSet. A user can name the StatefulSet as
// the owner of any Pod; the controller of StatefulSets also sets the label
// (https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#pod-name-label).
func belongsTo(pod *corev1.Pod, set *appsv1.StatefulSet) bool {
	_, ok := podOrdinal(set.Name, pod.Name)
	return ok && metav1.IsControlledBy(pod, set) && pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name
}

// isNode reports whether a Pod that belongs to a StatefulSet is a node of its present size. The
// metrics of other Pods decide nothing.
func isNode(pod *corev1.Pod, set *appsv1.StatefulSet) bool {
	ordinal, ok := podOrdinal(set.Name, pod.Name)
	return ok && ordinal < ptr.Deref(set.Spec.Replicas, 1)
}

// observe reads a cluster whose StatefulSet exists, and scrapes its nodes.
func (c *Controller) observe(ctx context.Context, m *memory, cluster *v1alpha1.MarekvsCluster, set *appsv1.StatefulSet) (*scale.Observation, *scale.Load) {
	pods := c.readPods(set)
	scrapes := c.scrape(ctx, set, pods)
	now := c.Clock.Now()
	o := &scale.Observation{
		Name:              set.Name,
		ReplicationFactor: cluster.Spec.ReplicationFactor,
		Replicas:          ptr.Deref(set.Spec.Replicas, 1),
		StatusReplicas:    set.Status.Replicas,
		Current:           set.Status.ObservedGeneration >= set.Generation,
		TemplateCurrent:   set.Annotations[v1alpha1.AnnotationTemplateHash] == children.TemplateHash(cluster, c.Children, gossipClusterOf(set)),
		CurrentRevision:   set.Status.CurrentRevision,
		UpdateRevision:    set.Status.UpdateRevision,
		Settle:            c.Settle,
		SinceRemoval:      m.sinceRemoval(set, now),
		OnDelete:          set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType,
		Empty:             emptyNodes(set, pods, c.readClaims(cluster)),
	}
	if update := set.Spec.UpdateStrategy.RollingUpdate; update != nil {
		o.Partition = ptr.Deref(update.Partition, 0)
	}
	unready, deadline := m.unreadyFor(pods, now), progressDeadline(cluster)
	nodes, readings := map[int32]observe.Node{}, map[observe.Process]observe.Reading{}
	for i, pod := range pods {
		ordinal, _ := podOrdinal(set.Name, pod.Name)
		seen := describe(pod, ordinal)
		if !seen.Ready && seen.Failing == "" && unready[pod.UID] > deadline {
			seen.Failing = fmt.Sprintf("it is not ready after %s", deadline)
		}
		node := observe.Node{Process: process(pod), Terminating: seen.Terminating}
		reading := observe.Reading{At: now}
		if metrics := scrapes[i].Metrics; metrics != nil {
			seen.Sample, node.Members, node.Rounds, node.Moved = &metrics.Sample, metrics.Members, metrics.Rounds, metrics.Moved
			reading = observe.Reading{At: scrapes[i].At, Total: metrics.Commands}
		}
		if !seen.NeverRan {
			nodes[ordinal] = node
		}
		if !seen.Terminating && isNode(pod, set) && !o.Empty[ordinal] {
			readings[node.Process] = reading
		}
		o.Pods = append(o.Pods, seen)
	}
	m.nodes.Observe(now, nodes)
	o.SinceChange = m.nodes.SinceChange(now)
	for i := range o.Pods {
		node := nodes[o.Pods[i].Ordinal]
		o.Pods[i].Rounds, o.Pods[i].QuietRounds = m.nodes.Rounds(node), m.nodes.QuietRounds(node)
	}
	return o, c.load(m, cluster, set, o, readings, now)
}

func (c *Controller) load(
	m *memory, cluster *v1alpha1.MarekvsCluster, set *appsv1.StatefulSet, o *scale.Observation, readings map[observe.Process]observe.Reading, now time.Time,
) *scale.Load {
	load := &scale.Load{DiskUsed: o.DiskUsed(), DiskAfterRemoval: o.DiskAfterRemoval()}
	load.Rate, load.Complete = m.rates.Add(readings)
	complete := load.Rate
	// Without a sample of every node, the rate of the cluster is incomplete. A node that never ran
	// executes nothing.
	if !load.Complete || !o.EveryNodeSampled() {
		load.Complete, complete = false, nil
	}
	window := stabilization(cluster)
	m.history.Add(now, window, complete)
	load.Peak = m.history.Peak(now, window)
	for _, annotation := range []string{v1alpha1.AnnotationLastScaleUp, v1alpha1.AnnotationLastScaleDown} {
		if at, ok := m.timeOf(set, annotation, now); ok {
			if since := now.Sub(at); load.SinceScale == nil || since < *load.SinceScale {
				load.SinceScale = &since
			}
		}
	}
	if share, err := strconv.ParseFloat(set.Annotations[v1alpha1.AnnotationDiskAtGrowth], 64); err == nil {
		load.DiskAtGrowth = &share
	}
	return load
}

// scrape returns the metrics of Pods, in their order. It skips Pods that are being deleted, are
// no nodes or have no address.
func (c *Controller) scrape(ctx context.Context, set *appsv1.StatefulSet, pods []*corev1.Pod) []observe.Scrape {
	results := make([]observe.Scrape, len(pods))
	var addresses []string
	var indexes []int
	for i, pod := range pods {
		if pod.DeletionTimestamp == nil && pod.Status.PodIP != "" && isNode(pod, set) {
			addresses, indexes = append(addresses, c.addressOf(pod)), append(indexes, i)
		}
	}
	for i, result := range c.Scraper.Scrape(ctx, addresses) {
		if result.Err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot read the metrics of a node", "pod", klog.KObj(pods[indexes[i]]), "err", result.Err)
		}
		results[indexes[i]] = result
	}
	return results
}

// addressOf returns the address of the metrics of a Pod. Until it is updated, a Pod serves them at the
// port that it was created with.
func (c *Controller) addressOf(pod *corev1.Pod) string {
	if port := children.MetricsPortOf(&pod.Spec); port != 0 && port != c.Children.MetricsPort {
		return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port)))
	}
	return pod.Status.PodIP
}

func progressDeadline(cluster *v1alpha1.MarekvsCluster) time.Duration {
	return time.Duration(cluster.Spec.ProgressDeadlineSeconds) * time.Second
}

func describe(pod *corev1.Pod, ordinal int32) scale.Pod {
	described := scale.Pod{
		Ordinal:     ordinal,
		Terminating: pod.DeletionTimestamp != nil,
		Revision:    pod.Labels[appsv1.StatefulSetRevisionLabel],
		Factor:      children.FactorOf(&pod.Spec),
		Ready: slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
			return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
		}),
	}
	if described.Ready {
		return described
	}
	described.NeverRan = neverRan(pod)
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil && !starting[waiting.Reason] {
			described.Failing = waiting.Reason
		}
	}
	return described
}

// starting has the reasons for which the container of a Pod waits although nothing is wrong.
var starting = map[string]bool{"": true, "ContainerCreating": true, "PodInitializing": true}

// neverRan reports whether no container of a Pod has started yet
// (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-phase).
func neverRan(pod *corev1.Pod) bool {
	for _, status := range pod.Status.ContainerStatuses {
		for _, state := range []corev1.ContainerState{status.State, status.LastTerminationState} {
			if state.Running != nil || state.Terminated != nil {
				return false
			}
		}
		if status.RestartCount > 0 {
			return false
		}
	}
	return pod.Status.Phase == corev1.PodPending
}

// creationGap is how long the StatefulSet controller may take between the creation of a claim and of
// its Pod.
const creationGap = 10 * time.Second

// emptyNodes returns the ordinals of the nodes of a StatefulSet that have no data: nothing has run with
// their volume yet.
func emptyNodes(set *appsv1.StatefulSet, pods []*corev1.Pod, claims map[int32]*corev1.PersistentVolumeClaim) map[int32]bool {
	empty := map[int32]bool{}
	for ordinal := range ptr.Deref(set.Spec.Replicas, 1) {
		claim := claims[ordinal]
		empty[ordinal] = claim == nil || unbound(claim)
	}
	for _, pod := range pods {
		ordinal, _ := podOrdinal(set.Name, pod.Name)
		claim := claims[ordinal]
		switch {
		case pod.DeletionTimestamp != nil, !neverRan(pod):
			empty[ordinal] = false
		case claim == nil, unbound(claim) && pod.Spec.NodeName == "":
			empty[ordinal] = true
		default:
			// An earlier Pod may have run with an older volume.
			empty[ordinal] = claim.CreationTimestamp.Add(creationGap).After(pod.CreationTimestamp.Time)
		}
	}
	maps.DeleteFunc(empty, func(_ int32, isEmpty bool) bool { return !isEmpty })
	return empty
}

// unbound reports whether a claim never had a volume.
func unbound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName == "" && claim.Status.Phase == corev1.ClaimPending
}

func process(pod *corev1.Pod) observe.Process {
	restarts := int32(0)
	for _, status := range pod.Status.ContainerStatuses {
		restarts += status.RestartCount
	}
	return observe.Process{Pod: pod.UID, Restarts: restarts}
}

func podOrdinal(set, pod string) (int32, bool) {
	text, ok := strings.CutPrefix(pod, set+"-")
	ordinal, err := strconv.ParseInt(text, 10, 32)
	return int32(ordinal), ok && err == nil && ordinal >= 0
}

// readVolumes returns the volume claims that have all labels of a cluster and a name that
// the StatefulSet controller creates.
func (c *Controller) readVolumes(cluster *v1alpha1.MarekvsCluster) []scale.Volume {
	key := cache.MetaObjectToName(cluster).String()
	return volumesOf(cluster, controller.Indexed[corev1.PersistentVolumeClaim](c.Informers.Claims.GetIndexer(), byCluster, key))
}

// readClaims returns the volume claims of readVolumes by ordinal.
func (c *Controller) readClaims(cluster *v1alpha1.MarekvsCluster) map[int32]*corev1.PersistentVolumeClaim {
	claims := map[int32]*corev1.PersistentVolumeClaim{}
	for _, claim := range controller.Indexed[corev1.PersistentVolumeClaim](c.Informers.Claims.GetIndexer(), byCluster, cache.MetaObjectToName(cluster).String()) {
		if ordinal, ok := scale.VolumeOrdinal(cluster.Name, claim.Name); ok {
			claims[ordinal] = claim
		}
	}
	return claims
}

func volumesOf(cluster *v1alpha1.MarekvsCluster, claims []*corev1.PersistentVolumeClaim) []scale.Volume {
	var volumes []scale.Volume
	for _, claim := range claims {
		ordinal, ok := scale.VolumeOrdinal(cluster.Name, claim.Name)
		if !ok || !hasLabels(claim, children.Labels(cluster.Name)) {
			continue
		}
		volumes = append(volumes, scale.Volume{Name: claim.Name, Ordinal: ordinal, Terminating: claim.DeletionTimestamp != nil})
	}
	slices.SortFunc(volumes, func(a, b scale.Volume) int { return int(a.Ordinal - b.Ordinal) })
	return volumes
}

func hasLabels(claim *corev1.PersistentVolumeClaim, labels map[string]string) bool {
	for name, value := range labels {
		if claim.Labels[name] != value {
			return false
		}
	}
	return true
}

// timeOf returns the time in an annotation.
func timeOf(set *appsv1.StatefulSet, annotation string) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, set.Annotations[annotation])
	return at, err == nil
}

// nodesByZone returns the number of nodes in each zone, nil if that is not known yet of every node
// that has a Kubernetes Node.
func (c *Controller) nodesByZone(ctx context.Context, set *appsv1.StatefulSet) map[string]int32 {
	var nodes []string
	for _, pod := range c.readPods(set) {
		if pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && isNode(pod, set) {
			nodes = append(nodes, pod.Spec.NodeName)
		}
	}
	count, err := c.zones.Count(ctx, c.Kube, nodes, c.Clock.Now())
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Could not read the zones of the nodes", "err", err)
	}
	return count
}
