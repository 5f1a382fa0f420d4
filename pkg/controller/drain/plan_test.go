// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/shard"
)

func TestPlan(t *testing.T) {
	now := time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)
	deleteAt := now.Add(5 * time.Minute)
	draining := &shard.Notice{InstanceID: "i-1", ProviderID: "n1", State: shard.Draining, DeleteAt: deleteAt}
	endless := &shard.Notice{InstanceID: "i-1", ProviderID: "n1", State: shard.Draining}
	overdue := &shard.Notice{InstanceID: "i-1", ProviderID: "n1", State: shard.Draining, DeleteAt: now}
	unnamed := &shard.Notice{InstanceID: "i-1", State: shard.Draining, DeleteAt: deleteAt}

	open, cordoned, silent := newNode("n1"), newNode("n1"), newNode("n1")
	cordoned.Spec.Unschedulable, silent.Spec.Unschedulable = true, true
	silent.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	one := []*corev1.Node{cordoned}

	running, ending := newPod("web-0", "n1"), newPod("web-1", "n1")
	ending.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(20 * time.Second)))
	left := podsSeen{watched: true, synced: true, sorted: true, remaining: []*corev1.Pod{running, ending}}
	empty := podsSeen{watched: true, synced: true, sorted: true, emptySince: now}
	attached, stuck := empty, empty
	attached.attached, attached.emptySince = 1, now.Add(-volumeTimeout+time.Second)
	stuck.attached, stuck.emptySince = 1, now.Add(-volumeTimeout)

	for name, c := range map[string]struct {
		seen observation
		want decision
	}{
		"nothing is known":                    {observation{}, decision{step: nothing}},
		"no notice, and the watch is closed":  {observation{marked: one}, decision{step: nothing}},
		"no notice and no mark":               {observation{settled: true}, decision{step: forget, outcome: withdrawn}},
		"no notice and a mark":                {observation{settled: true, marked: one}, decision{step: ask}},
		"being deleted":                       {observation{notice: &shard.Notice{State: shard.Deleting}, marked: one}, decision{step: forget, outcome: deleted}},
		"deleted":                             {observation{notice: &shard.Notice{State: shard.Deleted}, marked: one}, decision{step: forget, outcome: deleted}},
		"not cordoned":                        {observation{notice: draining, nodes: []*corev1.Node{open}}, decision{step: cordon, until: now.Add(echo)}},
		"not cordoned, acknowledged":          {observation{notice: draining, nodes: []*corev1.Node{open}, acknowledged: true}, decision{step: cordon, until: now.Add(echo)}},
		"not cordoned, too late":              {observation{notice: overdue, nodes: []*corev1.Node{open}}, decision{step: acknowledge, outcome: timedOut}},
		"too late":                            {observation{notice: overdue, nodes: one, pods: left}, decision{step: acknowledge, outcome: timedOut}},
		"too late, acknowledged":              {observation{notice: overdue, nodes: one, acknowledged: true}, decision{step: nothing}},
		"acknowledged":                        {observation{notice: draining, nodes: one, acknowledged: true, pods: left}, decision{step: nothing}},
		"two Nodes":                           {observation{notice: draining, nodes: []*corev1.Node{open, cordoned}}, decision{step: report, until: deleteAt}},
		"no Node in the cache":                {observation{notice: draining}, decision{step: lookUp, until: deleteAt}},
		"no Node, live":                       {observation{notice: draining, absent: true}, decision{step: acknowledge, outcome: noNode, until: deleteAt}},
		"no provider id":                      {observation{notice: unnamed, absent: true}, decision{step: nothing, until: deleteAt}},
		"Pods are not watched":                {observation{notice: draining, nodes: one}, decision{step: watchPods, until: deleteAt}},
		"Pods are not seen yet":               {observation{notice: draining, nodes: one, pods: podsSeen{watched: true}}, decision{step: nothing, until: deleteAt}},
		"Pods are not sorted":                 {observation{notice: draining, nodes: one, pods: podsSeen{watched: true, synced: true}}, decision{step: sortPods, until: deleteAt}},
		"Pods are not sorted, just listed":    {observation{notice: draining, nodes: one, pods: podsSeen{watched: true, synced: true, listAfter: now.Add(1)}}, decision{step: nothing, until: now.Add(1)}},
		"Pods remain":                         {observation{notice: draining, nodes: one, pods: left}, decision{step: evict, until: deleteAt}},
		"Pods remain, no end":                 {observation{notice: endless, nodes: one, pods: left}, decision{step: evict}},
		"Pods remain on a silent Node":        {observation{notice: draining, nodes: []*corev1.Node{silent}, pods: left}, decision{step: evict, until: now.Add(20 * time.Second)}},
		"volumes are attached":                {observation{notice: draining, nodes: one, pods: attached}, decision{step: detach, until: now.Add(time.Second)}},
		"volumes are attached, for too long":  {observation{notice: draining, nodes: one, pods: stuck}, decision{step: acknowledge, outcome: volumesAttached, until: deleteAt}},
		"nothing is left":                     {observation{notice: draining, nodes: one, pods: empty}, decision{step: acknowledge, outcome: drained, until: deleteAt}},
		"nothing is left, without a deadline": {observation{notice: endless, nodes: one, pods: empty}, decision{step: acknowledge, outcome: drained}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := plan(c.seen, now); got != c.want {
				t.Errorf("plan is %+v, want %+v", got, c.want)
			}
		})
	}
}
