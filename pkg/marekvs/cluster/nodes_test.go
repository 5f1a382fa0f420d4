// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/marekvs/observe"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// node is the process of a Pod.
type node struct {
	commands float64
	rounds   float64
}

// nodes act as the StatefulSet controller, and as nodes that start and end at once.
type nodes struct {
	api *api

	// rate is that of the whole cluster.
	rate float64
	// under is the number of partitions with too few owners.
	under int64
	// silent are the Pods without metrics.
	silent map[string]bool
	// draining is true while Pods are being deleted and do not end.
	draining bool

	created int
	// started are the nodes that run, by address.
	started map[string]*node
	// scraped are the addresses of the last scrape.
	scraped []string
}

// roundTime is how long a node takes to compare its copies.
const roundTime = 5 * time.Second

// advance lets time pass.
func (n *nodes) advance(d time.Duration) {
	n.api.clock.SetTime(n.api.clock.Now().Add(d))
	for _, started := range n.started {
		started.commands += n.rate / float64(len(n.started)) * d.Seconds()
		started.rounds += float64(d) / float64(roundTime)
	}
}

// Scrape implements Scraper.
func (n *nodes) Scrape(_ context.Context, addresses []string) []observe.Scrape {
	n.scraped = addresses
	results := make([]observe.Scrape, len(addresses))
	for i, address := range addresses {
		started := n.started[address]
		if started == nil || n.silent[address] {
			results[i].Err = errors.New("silent")
			continue
		}
		results[i] = observe.Scrape{At: n.api.clock.Now(), Metrics: &observe.Metrics{
			Sample: scale.Sample{
				Underreplicated: ptr.To(n.under), Members: ptr.To(int64(len(n.started))), EffectiveReplicas: ptr.To[int64](2),
			},
			Commands: ptr.To(float64(int64(started.commands))), Rounds: ptr.To(int64(started.rounds)),
		}}
	}
	return results
}

// runStatefulSet brings the Pods to the spec of the StatefulSet.
func (n *nodes) runStatefulSet() {
	set := n.api.set()
	if set == nil {
		return
	}
	revision := set.Spec.Template.Spec.Containers[0].Image
	if set.Status.CurrentRevision == "" {
		set.Status.CurrentRevision = revision
	}
	set.Status.UpdateRevision = revision
	present, updated := map[int32]bool{}, int32(0)
	for _, pod := range n.api.pods() {
		ordinal, ok := podOrdinal("demo", pod.Name)
		if !ok || len(pod.OwnerReferences) == 0 {
			continue
		}
		current := pod.Labels["controller-revision-hash"] == revision
		if ordinal >= *set.Spec.Replicas || !current && ordinal >= *set.Spec.UpdateStrategy.RollingUpdate.Partition {
			n.end(&pod)
			present[ordinal] = n.draining
			continue
		}
		present[ordinal] = true
		if current {
			updated++
		}
	}
	for ordinal := range *set.Spec.Replicas {
		if !present[ordinal] {
			n.start(ordinal)
			updated++
		}
	}
	if updated == *set.Spec.Replicas {
		set.Status.CurrentRevision = revision
	}
	set.Status.ObservedGeneration = set.Generation
	set.Status.Replicas = int32(len(n.started))
	n.api.builtIn.Update(setResource, set)
}

func (n *nodes) start(ordinal int32) {
	set := n.api.set()
	set.Status.UpdateRevision = set.Spec.Template.Spec.Containers[0].Image
	if ordinal < *set.Spec.UpdateStrategy.RollingUpdate.Partition {
		set.Status.UpdateRevision = set.Status.CurrentRevision
	}
	n.created++
	address := fmt.Sprintf("10.0.0.%d", n.created)
	n.started[address] = &node{}
	n.api.builtIn.Add(newPod(set, ordinal, fmt.Sprintf("pod-%d", n.created), address))
	if _, err := n.api.kube.Tracker().Get(claimResource, "ns", newClaim(ordinal).Name); err != nil {
		n.api.builtIn.Add(newClaim(ordinal))
	}
}

func (n *nodes) end(pod *corev1.Pod) {
	if n.draining {
		if pod.DeletionTimestamp == nil {
			pod.DeletionTimestamp = ptr.To(metav1.NewTime(n.api.clock.Now()))
			pod.Finalizers = []string{"test/draining"}
			n.api.builtIn.Update(podResource, pod)
		}
		return
	}
	delete(n.started, pod.Status.PodIP)
	n.api.builtIn.Remove(podResource, pod.Namespace, pod.Name)
}

func quantity(text string) resource.Quantity { return resource.MustParse(text) }
