// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package orphannode

import (
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// instanceIDs is the syntax of the ids of instances (docs/protocol.md#identifiers).
var instanceIDs = regexp.MustCompile(`^[a-z]{3}[0-9a-hjkmnp-tv-z]{26}$`)

// instanceOf returns the instance id in the provider id of a Node, "" if there is none. The
// provider ids of AWS have no instance id: there a cloud controller manager deletes Nodes
// (https://kubernetes.io/docs/concepts/architecture/cloud-controller/#node-controller).
func instanceOf(node *corev1.Node) string {
	id := providerid.Key(node.Spec.ProviderID)
	if id == node.Spec.ProviderID || !instanceIDs.MatchString(id) {
		return ""
	}
	return id
}

// mayBeOrphaned reports whether a Node may have belonged to an instance, and its kubelet does
// not report. A kubelet that reports that it is not ready runs, and so does its machine.
func mayBeOrphaned(node *corev1.Node) bool {
	return node.DeletionTimestamp == nil && instanceOf(node) != "" &&
		controllers.ReadyCondition(node).Status == corev1.ConditionUnknown
}

// observation is the state of a Node and of its shard at the time of a sync.
type observation struct {
	// node is nil if the cache does not have the Node.
	node *corev1.Node
	// paused is set while the Cluster is paused.
	paused bool
	// proof is what a shard has confirmed, nil for nothing. The following fields are about its
	// shard.
	proof *proof
	// usable is set if the shard is configured and connected, and the cache has all its groups.
	usable bool
	// listed is set if the list that the proof waits for is complete. reported is set if the
	// groups in the cache have the instance.
	listed, reported bool
}

// step is the action of a sync.
type step int

const (
	// ignore: the Node is not orphaned, or it is not known yet.
	ignore step = iota
	// search queries the shards for the instance.
	search
	// await waits for a list of the shard.
	await
	// confirm queries the shard for the instance after a list, and deletes the Node if that was
	// the last confirmation.
	confirm
)

// decision is the next step for a Node, and the time until the next sync, 0 to wait for a change
// of the Node.
type decision struct {
	step  step
	after time.Duration
}

// plan decides on the next step.
func plan(observed observation, now time.Time) decision {
	if observed.node == nil || !mayBeOrphaned(observed.node) {
		return decision{step: ignore}
	}
	since := controllers.ReadyCondition(observed.node).LastTransitionTime.Time
	left := since.Add(unknownTimeout).Sub(now)
	switch {
	case left > 0:
		return decision{step: ignore, after: left}
	case observed.paused:
		return decision{step: ignore, after: recheckPeriod}
	case observed.proof == nil:
		return decision{step: search, after: recheckPeriod}
	case !observed.usable, observed.reported:
		return decision{step: ignore, after: recheckPeriod}
	case !observed.listed:
		return decision{step: await, after: listPeriod}
	default:
		return decision{step: confirm, after: recheckPeriod}
	}
}

// terminated reports whether a shard has confirmed that the instance of a Node is terminated. The
// provider id in the record is empty if the provider had not reported it before.
func terminated(instance shard.Instance, node *corev1.Node) bool {
	return instance.State == shard.InstanceTerminated && instance.ID == instanceOf(node) &&
		(instance.ProviderID == "" || providerid.Match(instance.ProviderID, node.Spec.ProviderID))
}

// reports reports whether groups of a shard have the instance of a Node.
func reports(groups []shard.Group, node *corev1.Node) bool {
	id := instanceOf(node)
	for i := range groups {
		for _, instance := range groups[i].Instances {
			if instance.ID == id {
				return true
			}
		}
		for _, providerID := range groups[i].ProviderIDs {
			if providerid.Match(providerID, node.Spec.ProviderID) {
				return true
			}
		}
	}
	return false
}
