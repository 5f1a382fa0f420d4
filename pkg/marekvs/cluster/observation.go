// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/observe"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// startDeadline is how long an updated Pod may take to become ready before the rollout is
// halted.
const startDeadline = 10 * time.Minute

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
		SinceRemoval:      sinceRemoval(set, now),
	}
	if update := set.Spec.UpdateStrategy.RollingUpdate; update != nil {
		o.Partition = ptr.Deref(update.Partition, 0)
	}
	nodes, readings := map[int32]observe.Node{}, map[observe.Process]observe.Reading{}
	for i, pod := range pods {
		ordinal, _ := podOrdinal(set.Name, pod.Name)
		seen := describe(pod, ordinal, now)
		node := observe.Node{Process: process(pod), Terminating: seen.Terminating}
		reading := observe.Reading{At: now}
		if metrics := scrapes[i].Metrics; metrics != nil {
			seen.Sample, node.Members, node.Rounds, node.Moved = &metrics.Sample, metrics.Members, metrics.Rounds, metrics.Moved
			reading = observe.Reading{At: scrapes[i].At, Total: metrics.Commands}
		}
		nodes[ordinal] = node
		if !seen.Terminating && isNode(pod, set) {
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
	// Without a sample of every expected node, the rate of the cluster is incomplete.
	if sampled, want := o.Sampled(); !load.Complete || sampled < want {
		load.Complete, complete = false, nil
	}
	window := stabilization(cluster)
	m.history.Add(now, window, complete)
	load.Peak = m.history.Peak(now, window)
	for _, annotation := range []string{v1alpha1.AnnotationLastScaleUp, v1alpha1.AnnotationLastScaleDown} {
		if at, ok := timeOf(set, annotation); ok {
			if since := now.Sub(at); load.SinceScale == nil || since < *load.SinceScale {
				load.SinceScale = &since
			}
		}
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
			addresses, indexes = append(addresses, pod.Status.PodIP), append(indexes, i)
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

func describe(pod *corev1.Pod, ordinal int32, now time.Time) scale.Pod {
	described := scale.Pod{
		Ordinal:     ordinal,
		Terminating: pod.DeletionTimestamp != nil,
		Revision:    pod.Labels[appsv1.StatefulSetRevisionLabel],
		Ready: slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
			return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
		}),
	}
	if described.Ready {
		return described
	}
	if now.Sub(pod.CreationTimestamp.Time) > startDeadline {
		described.Failing = fmt.Sprintf("it is not ready after %s", startDeadline)
	}
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "" && waiting.Reason != "ContainerCreating" {
			described.Failing = waiting.Reason
		}
	}
	return described
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

// sinceRemoval returns how long ago a node was last removed, or the StatefulSet created.
func sinceRemoval(set *appsv1.StatefulSet, now time.Time) time.Duration {
	if at, ok := timeOf(set, v1alpha1.AnnotationLastScaleDown); ok {
		return now.Sub(at)
	}
	return now.Sub(set.CreationTimestamp.Time)
}

// timeOf returns the time in an annotation.
func timeOf(set *appsv1.StatefulSet, annotation string) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, set.Annotations[annotation])
	return at, err == nil
}

// memory has the state that the controller remembers about a cluster between two syncs. Losing it in a
// restart delays removals and has no other effect.
type memory struct {
	rates   *observe.Rates
	history *observe.History
	nodes   *observe.Nodes
	// applied has the hashes of the last applies of children, by kind and name.
	applied map[string]applied
}

// gapPeriods is the number of consecutive syncs that the history of the load may miss.
const gapPeriods = 4

// memoryOf returns the memory of a cluster. A key is never synced by two workers at a time.
func (c *Controller) memoryOf(cluster types.UID) *memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := c.memories[cluster]
	if !ok {
		m = &memory{
			rates:   observe.NewRates(c.RateWindow),
			history: observe.NewHistory(gapPeriods * c.Period),
			nodes:   &observe.Nodes{},
			applied: map[string]applied{},
		}
		c.memories[cluster] = m
	}
	return m
}

// forget drops the memories of clusters that do not exist.
func (c *Controller) forget() {
	exists := map[types.UID]bool{}
	for _, obj := range c.Informers.Clusters.GetStore().List() {
		if object, ok := obj.(metav1.Object); ok {
			exists[object.GetUID()] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid := range c.memories {
		if !exists[uid] {
			delete(c.memories, uid)
		}
	}
}
