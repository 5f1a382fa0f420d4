// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"fmt"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/observe"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// memory has the state that the controller remembers about a cluster between two syncs. Losing it in a
// restart delays removals and has no other effect.
type memory struct {
	rates   *observe.Rates
	history *observe.History
	nodes   *observe.Nodes
	// applied has the hashes of the last applies of children, by kind and name.
	applied map[string]applied
	// unready has when each Pod that is not ready was first seen so.
	unready map[types.UID]time.Time
	// lost has since when the volume of each claim is known to be lost. After a restart of the operator
	// that begins again.
	lost map[types.UID]time.Time
	// stamps has when the time in an annotation was first seen, by annotation.
	stamps   map[string]stampSeen
	progress progress
	// seen is read by the metrics, while syncs write the other fields.
	seen atomic.Pointer[seen]
}

// stampSeen is the text of a time, and when it was first seen.
type stampSeen struct {
	text string
	at   time.Time
}

// timeOf returns the time in an annotation. A time that another clock has written counts from when it
// was first seen if it is in the future.
func (m *memory) timeOf(set *appsv1.StatefulSet, annotation string, now time.Time) (time.Time, bool) {
	at, ok := timeOf(set, annotation)
	if !ok {
		return at, false
	}
	seen, text := m.stamps[annotation], set.Annotations[annotation]
	if seen.text != text {
		seen = stampSeen{text, now}
		m.stamps[annotation] = seen
	}
	if seen.at.Before(at) {
		return seen.at, true
	}
	return at, true
}

// sinceRemoval returns how long ago a node was last removed, or the StatefulSet created.
func (m *memory) sinceRemoval(set *appsv1.StatefulSet, now time.Time) time.Duration {
	if at, ok := m.timeOf(set, v1alpha1.AnnotationLastScaleDown, now); ok {
		return now.Sub(at)
	}
	return now.Sub(set.CreationTimestamp.Time)
}

// unreadyFor returns how long each Pod that is not ready has been so, by the clock of the operator. After
// a restart of the operator that begins again.
func (m *memory) unreadyFor(pods []*corev1.Pod, now time.Time) map[types.UID]time.Duration {
	unready, since := map[types.UID]time.Duration{}, map[types.UID]time.Time{}
	for _, pod := range pods {
		if describe(pod, 0).Ready {
			continue
		}
		at, known := m.unready[pod.UID]
		if !known {
			at = now
		}
		unready[pod.UID], since[pod.UID] = now.Sub(at), at
	}
	m.unready = since
	return unready
}

// progress is the last step of an update or of a change of the size.
type progress struct {
	step  string
	since time.Time
}

// stalledFor returns how long there has been no other step. An empty step means that nothing is to
// change.
func (p *progress) stalledFor(step string, now time.Time) time.Duration {
	if step == "" || step != p.step {
		p.step, p.since = step, now
	}
	return now.Sub(p.since)
}

// stepOf describes how far a change is, empty if nothing is to change.
func stepOf(o *scale.Observation, decision *scale.Decision) string {
	replacement := decision.Replacement.Waiting
	waits := replacement != nil && replacement.Reason != v1alpha1.ReasonVolumeLost
	if decision.Target == o.Replicas && decision.Rollout.Done && !waits {
		return ""
	}
	return fmt.Sprint(waits, len(o.Lost), o.Replicas, decision.Target, o.TemplateCurrent, o.UpdateRevision, o.Updated(), decision.Rollout.Partition)
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
			stamps:  map[string]stampSeen{},
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
