// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/operator/shard"
)

func TestPlan(t *testing.T) {
	now := time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)
	deleteAt := now.Add(5 * time.Minute)
	draining := &shard.DeletionNotice{InstanceID: "i-1", ProviderID: "n1", State: shard.Draining, Deadline: deleteAt}
	noDeadline := &shard.DeletionNotice{InstanceID: "i-1", ProviderID: "n1", State: shard.Draining}
	overdue := &shard.DeletionNotice{InstanceID: "i-1", ProviderID: "n1", State: shard.Draining, Deadline: now}
	noProviderID := &shard.DeletionNotice{InstanceID: "i-1", State: shard.Draining, Deadline: deleteAt}

	open, cordoned := newNode("n1"), newNode("n1")
	cordoned.Spec.Unschedulable = true
	cordonedNode := []*corev1.Node{cordoned}

	running, ending := newPod("web-0", "n1"), newPod("web-1", "n1")
	both := []*corev1.Pod{running, ending}
	remaining := podsObservation{watched: true, synced: true, classified: true, remaining: both}
	unreachablePods := remaining
	unreachablePods.gracePeriodEnd = now.Add(20 * time.Second)
	endingPods := remaining
	endingPods.stuckAt = now.Add(30 * time.Second)
	empty := podsObservation{watched: true, synced: true, classified: true, emptySince: now}
	attached, stuck := empty, empty
	attached.attached, attached.emptySince = 1, now.Add(-volumeTimeout+time.Second)
	stuck.attached, stuck.emptySince = 1, now.Add(-volumeTimeout)

	mismatched := &mismatch{listAgainAt: now.Add(otherNodePeriod)}
	for name, c := range map[string]struct {
		observed observation
		want     decision
	}{
		"no information":                     {observation{}, decision{step: nothing}},
		"no notice, cache not settled":       {observation{cordoned: cordonedNode}, decision{step: nothing}},
		"no notice, not cordoned":            {observation{settled: true}, decision{step: forget, outcome: withdrawn}},
		"no notice, cordoned":                {observation{settled: true, cordoned: cordonedNode}, decision{step: checkWithdrawal}},
		"being deleted":                      {observation{notice: &shard.DeletionNotice{State: shard.Deleting}, cordoned: cordonedNode}, decision{step: forget, outcome: deleted}},
		"deleted":                            {observation{notice: &shard.DeletionNotice{State: shard.Deleted}, cordoned: cordonedNode}, decision{step: forget, outcome: deleted}},
		"not cordoned":                       {observation{notice: draining, nodes: []*corev1.Node{open}}, decision{step: cordon, until: now.Add(cordonTimeout)}},
		"not cordoned, acknowledged":         {observation{notice: draining, nodes: []*corev1.Node{open}, acknowledged: true}, decision{step: cordon, until: now.Add(cordonTimeout)}},
		"not cordoned, overdue":              {observation{notice: overdue, nodes: []*corev1.Node{open}}, decision{step: expire, outcome: timedOut}},
		"not cordoned, expired":              {observation{notice: overdue, nodes: []*corev1.Node{open}, expired: true}, decision{step: cordon, until: now.Add(cordonTimeout)}},
		"overdue":                            {observation{notice: overdue, nodes: cordonedNode, pods: remaining}, decision{step: expire, outcome: timedOut}},
		"overdue, expired":                   {observation{notice: overdue, nodes: cordonedNode, expired: true}, decision{step: nothing}},
		"expired, with a later deadline":     {observation{notice: draining, nodes: cordonedNode, pods: remaining, expired: true}, decision{step: evict, until: deleteAt, evict: both, margin: 35 * time.Second}},
		"overdue, acknowledged":              {observation{notice: overdue, nodes: cordonedNode, acknowledged: true}, decision{step: nothing}},
		"acknowledged":                       {observation{notice: draining, nodes: cordonedNode, acknowledged: true, pods: remaining}, decision{step: nothing}},
		"annotations outdated":               {observation{notice: draining, nodes: cordonedNode, outdated: true, pods: remaining}, decision{step: annotate, until: now.Add(cordonTimeout)}},
		"annotations outdated, acknowledged": {observation{notice: draining, nodes: cordonedNode, outdated: true, acknowledged: true}, decision{step: nothing}},
		"two Nodes":                          {observation{notice: draining, nodes: []*corev1.Node{open, cordoned}}, decision{step: reportAmbiguity, until: deleteAt}},
		"no Node in the cache":               {observation{notice: draining}, decision{step: lookUpNode, until: deleteAt}},
		"no Node in a live list":             {observation{notice: draining, notFound: true}, decision{step: acknowledge, outcome: noNode, until: deleteAt}},
		"a Node with another provider id":    {observation{notice: draining, mismatch: mismatched}, decision{step: reportMismatch, until: now.Add(otherNodePeriod)}},
		"the same, to be listed again":       {observation{notice: draining, mismatch: &mismatch{listAgainAt: now}}, decision{step: lookUpNode, until: deleteAt}},
		"the same, overdue":                  {observation{notice: overdue, mismatch: mismatched}, decision{step: expire, outcome: timedOut}},
		"no provider id":                     {observation{notice: noProviderID, notFound: true}, decision{step: nothing, until: deleteAt}},
		"Pods not watched":                   {observation{notice: draining, nodes: cordonedNode}, decision{step: watchPods, until: deleteAt}},
		"watch of Pods not synced":           {observation{notice: draining, nodes: cordonedNode, pods: podsObservation{watched: true}}, decision{step: nothing, until: deleteAt}},
		"Pods not classified":                {observation{notice: draining, nodes: cordonedNode, pods: podsObservation{watched: true, synced: true}}, decision{step: classifyPods, until: deleteAt}},
		"Pods not classified, just listed":   {observation{notice: draining, nodes: cordonedNode, pods: podsObservation{watched: true, synced: true, listAfter: now.Add(1)}}, decision{step: nothing, until: now.Add(1)}},
		"Pods remain":                        {observation{notice: draining, nodes: cordonedNode, pods: remaining}, decision{step: evict, until: deleteAt, evict: both, margin: 35 * time.Second}},
		"Pods remain, no deadline":           {observation{notice: noDeadline, nodes: cordonedNode, pods: remaining}, decision{step: evict, evict: both, margin: 35 * time.Second}},
		"Pods remain, Node unreachable":      {observation{notice: draining, nodes: cordonedNode, pods: unreachablePods}, decision{step: evict, until: now.Add(20 * time.Second), evict: both, margin: 35 * time.Second}},
		"Pods remain, one is deleted":        {observation{notice: draining, nodes: cordonedNode, pods: endingPods}, decision{step: evict, until: now.Add(30 * time.Second), evict: both, margin: 35 * time.Second}},
		"volumes attached":                   {observation{notice: draining, nodes: cordonedNode, pods: attached}, decision{step: awaitVolumes, until: now.Add(time.Second)}},
		"volumes attached for too long":      {observation{notice: draining, nodes: cordonedNode, pods: stuck}, decision{step: acknowledge, outcome: volumesAttached, until: deleteAt}},
		"no Pods":                            {observation{notice: draining, nodes: cordonedNode, pods: empty}, decision{step: acknowledge, outcome: drained, until: deleteAt}},
		"no Pods, no deadline":               {observation{notice: noDeadline, nodes: cordonedNode, pods: empty}, decision{step: acknowledge, outcome: drained}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, plan(c.observed, now))
		})
	}
}
