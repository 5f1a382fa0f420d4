// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// zonePeriod is how long the zone of a Kubernetes Node is remembered. A Node rarely gets another one.
const zonePeriod = 10 * time.Minute

// maxZones bounds how many Kubernetes Nodes are remembered.
const maxZones = 10_000

// zones remembers the zones of Kubernetes Nodes, so that each is read once in zonePeriod for all clusters.
type zones struct {
	mu    sync.Mutex
	known map[string]zoneSeen
}

type zoneSeen struct {
	zone string
	at   time.Time
}

// of returns the zone of a Kubernetes Node if it is remembered, empty if the Node has none.
func (z *zones) of(node string, now time.Time) (zone string, known bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	seen, known := z.known[node]
	return seen.zone, known && now.Sub(seen.at) < zonePeriod
}

// read reads the zone of a Kubernetes Node, empty if the Node has none or does not exist
// (https://kubernetes.io/docs/reference/labels-annotations-taints/#topologykubernetesiozone).
func (z *zones) read(ctx context.Context, kube kubernetes.Interface, node string, now time.Time) (string, error) {
	object, err := kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("read Node %s: %w", node, err)
	}
	zone := ""
	if err == nil {
		zone = object.Labels[corev1.LabelTopologyZone]
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.known == nil || len(z.known) >= maxZones {
		z.known = map[string]zoneSeen{}
	}
	z.known[node] = zoneSeen{zone, now}
	return zone, nil
}

// zoneReads is how many Kubernetes Nodes a sync reads. The next sync reads more.
const zoneReads = 20

// nodesByZone returns the number of nodes in each zone, nil if that is not known yet of every node that has a Kubernetes
// Node.
func (c *Controller) nodesByZone(ctx context.Context, set *appsv1.StatefulSet) map[string]int32 {
	count, reads, now := map[string]int32{}, 0, c.Clock.Now()
	for _, pod := range c.readPods(set) {
		node := pod.Spec.NodeName
		if node == "" || pod.DeletionTimestamp != nil || !isNode(pod, set) {
			continue
		}
		zone, known := c.zones.of(node, now)
		if !known {
			if reads++; reads > zoneReads {
				return nil
			}
			var err error
			if zone, err = c.zones.read(ctx, c.Kube, node, now); err != nil {
				klog.FromContext(ctx).V(2).Info("Cannot read the zone of a node", "pod", klog.KObj(pod), "err", err)
				return nil
			}
		}
		count[zone]++
	}
	return count
}

// setSurvivesZoneLoss sets whether the loss of a zone leaves a copy of each partition. The store places copies without
// regard to zones (github.com/yannick/marekvs, commit defc648, crates/marekvs-cluster/src/placement.rs), so any nodes may
// have all copies of a partition that are as many as there are copies. There is no such condition without zones.
func setSurvivesZoneLoss(status *v1alpha1.MarekvsClusterStatus, o *scale.Observation, count map[string]int32) {
	if count == nil {
		return // the last value stays
	}
	if _, without := count[""]; without || len(count) < 2 {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionSurvivesZoneLoss)
		return
	}
	var largest string
	for _, zone := range slices.Sorted(maps.Keys(count)) {
		if count[zone] > count[largest] {
			largest = zone
		}
	}
	message := fmt.Sprintf("Zone %s has %d of %d nodes, and each partition has %d copies.", largest, count[largest], o.Replicas, o.ReplicationFactor)
	if count[largest] >= o.ReplicationFactor {
		setConditions(status, condition(v1alpha1.ConditionSurvivesZoneLoss, false, v1alpha1.ReasonZonesNotUsed,
			message+" The store places copies without regard to zones: all copies of a partition may be in that zone."))
		return
	}
	setConditions(status, condition(v1alpha1.ConditionSurvivesZoneLoss, true, "", message))
}
