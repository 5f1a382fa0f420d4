// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// location is where the instance of an NstanceMachine is.
type location struct {
	// poolMember: the instance belongs to a pool. Its shard has created it, so shard
	// and instance id are known from the start, and no create request is sent.
	poolMember bool
	// shardID is "" while no shard is chosen.
	shardID string
	// requestID is the id of the create request, "" while no shard is chosen, and for a
	// pool member.
	requestID string
	// instanceID is "" while there is no instance.
	instanceID string
}

// locate returns the location of an NstanceMachine's instance. An NstanceMachine
// with a request id is not a pool member, whatever its label and owner. The name of a
// pool member is the id of its instance. Without the status, the annotations have the
// location.
func locate(nstanceMachine *v1beta1.NstanceMachine) location {
	status := nstanceMachine.Status
	at := location{shardID: status.Shard, requestID: status.RequestID, instanceID: status.InstanceID}
	if at.requestID == "" {
		if shard, request, ok := annotatedRequest(nstanceMachine); ok {
			at = location{shardID: shard, requestID: request, instanceID: nstanceMachine.Annotations[v1beta1.AnnotationInstanceID]}
		}
	}
	if at.requestID == "" && inPool(nstanceMachine) {
		return location{poolMember: true, shardID: string(nstanceMachine.Spec.Shard), instanceID: nstanceMachine.Name}
	}
	return at
}

// inPool reports whether an NstanceMachine was created for an instance of a pool. Labels
// can be removed by every client that may change the object, and the owner too: one of the
// two is enough.
func inPool(nstanceMachine *v1beta1.NstanceMachine) bool {
	_, labelled := nstanceMachine.Labels[clusterv1.MachinePoolNameLabel]
	return labelled || controllers.PoolOf(nstanceMachine) != nil
}

// annotatedRequest returns the shard and the id of the create request that the
// annotations have.
func annotatedRequest(nstanceMachine *v1beta1.NstanceMachine) (shard, request string, ok bool) {
	shard, request, _ = strings.Cut(nstanceMachine.Annotations[v1beta1.AnnotationRequest], "/")
	return shard, request, shard != "" && request != ""
}

// claimant returns the name of another NstanceMachine whose status has the create
// request that only the annotations of this one have, "" when there is none. An object
// that was created from a copy of another one has its annotations.
func (c *Controller) claimant(nstanceMachine *v1beta1.NstanceMachine) string {
	if nstanceMachine.Status.RequestID != "" {
		return ""
	}
	shard, request, ok := annotatedRequest(nstanceMachine)
	if !ok {
		return ""
	}
	for _, other := range c.indexed(byRequest, requestKey(shard, request)) {
		if other.UID != nstanceMachine.UID {
			return other.Name
		}
	}
	return ""
}

// wantedAnnotations returns the annotations that an NstanceMachine should have after a
// sync. The instance id is not worth a write of its own: it is written with the provider
// id, and repeating the create request returns it.
func wantedAnnotations(nstanceMachine *v1beta1.NstanceMachine, observed observation, done outcome, providerID string) map[string]string {
	shard, request := observed.shardID, observed.requestID
	if done.shard != "" {
		shard, request = done.shard, string(nstanceMachine.UID)
	}
	if request == "" {
		return nil
	}
	annotations := map[string]string{v1beta1.AnnotationRequest: shard + "/" + request}
	if instance := cmp.Or(done.instanceID, observed.instanceID); instance != "" && providerID != "" {
		annotations[v1beta1.AnnotationInstanceID] = instance
	}
	return annotations
}
