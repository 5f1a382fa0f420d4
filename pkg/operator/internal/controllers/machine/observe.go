// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// observation is the state of an NstanceMachine at the start of a sync.
type observation struct {
	nstanceMachine *v1beta1.NstanceMachine
	location
	// claimedBy is the name of another NstanceMachine whose status has the create request of
	// this one's annotations, "" if no other has it.
	claimedBy string
	// machine is the Machine that owns the NstanceMachine, nil if it has no owner.
	machine *clusterv1.Machine
	// machineDeleted: a Machine owned the NstanceMachine, and was deleted from the API server.
	machineDeleted bool
	// cluster is nil if it does not exist.
	cluster *clusterv1.Cluster
	// retained: the pool is being deleted, and its instances stay on the shards.
	retained bool
	// paused is the result of controllers.PausedBy.
	paused string

	// configured: the shard is in the configuration.
	configured bool
	// reachable: the shard is connected. If not, lost is the reason.
	reachable bool
	lost      error
	// etag is the etag of the group on the shard, "" if the shard does not have the group.
	etag string
	// listed is the pool member's instance in the list of its shard, nil if it is not listed.
	listed *shard.Instance
	// missing: the shard would list the instance if it existed.
	missing bool
	// session is the session of the watch of the shard's notices.
	session int64
	// notice is the deletion notice of the instance, nil without a notice.
	notice *shard.DeletionNotice
	drain  drain
	// providerError is the last error of the provider about the instance, "" without an error.
	providerError string

	now time.Time
}

// drain is the progress of the drain of the instance's Node.
type drain struct {
	blocked, running bool
	message          string
}

// observe reads the caches. It reads the Machine from the API server if the cache does not
// have it.
func (c *Controller) observe(ctx context.Context, nstanceMachine *v1beta1.NstanceMachine) (observation, error) {
	observed := observation{nstanceMachine: nstanceMachine, location: locate(nstanceMachine),
		providerError: c.providerErrors.get(nstanceMachine.UID), now: c.clock.Now()}
	if observed.claimedBy = c.claimant(nstanceMachine); observed.claimedBy != "" {
		observed.location = location{}
	}
	var err error
	if observed.machine, observed.machineDeleted, err = c.observeMachine(ctx, nstanceMachine); err != nil {
		return observation{}, err
	}
	if observed.cluster, err = controller.GetCached(c.clusterLister.Get, "Cluster", c.key(c.clusterName)); err != nil {
		return observation{}, err
	}
	if observed.retained, err = c.isRetained(nstanceMachine); err != nil {
		return observation{}, err
	}
	observed.paused = controllers.PausedBy(observed.cluster, nstanceMachine)
	if observed.paused == "" && observed.machine != nil {
		observed.paused = controllers.PausedBy(nil, observed.machine)
	}
	if observed.shardID != "" {
		c.observeShard(&observed)
	}
	return observed, nil
}

// observeMachine returns the Machine that owns an NstanceMachine, nil if it does not exist,
// and whether it was deleted.
func (c *Controller) observeMachine(ctx context.Context, nstanceMachine *v1beta1.NstanceMachine) (machine *clusterv1.Machine, deleted bool, err error) {
	ref := metav1.GetControllerOfNoCopy(nstanceMachine)
	if ref == nil || ref.Kind != "Machine" || !ofGroup(ref.APIVersion, clusterv1.GroupVersion.Group) {
		return nil, false, nil
	}
	machine, err = controller.GetCached(c.machineLister.Get, "Machine", c.key(ref.Name))
	if err != nil {
		return nil, false, err
	}
	if machine != nil && machine.UID == ref.UID {
		return machine, false, nil
	}
	if !nstanceMachine.DeletionTimestamp.IsZero() {
		// The deletion of an NstanceMachine does not depend on its Machine.
		return nil, false, nil
	}
	machine, err = c.readMachine(ctx, ref)
	return machine, err == nil && machine == nil, err
}

func ofGroup(apiVersion, group string) bool {
	version, err := schema.ParseGroupVersion(apiVersion)
	return err == nil && version.Group == group
}

// observeShard adds the state of the shard and of the instance.
func (c *Controller) observeShard(observed *observation) {
	group := string(observed.nstanceMachine.Spec.GroupRef.Name)
	observed.configured = c.shards.Has(observed.shardID)
	observed.reachable, observed.lost = c.groups.Reachable(observed.shardID)
	if group, ok := c.groups.Get(observed.shardID, group); ok {
		observed.etag = group.ETag
	}
	// The session is read before the notice, and both before the shard is queried. A
	// notice that arrives in between is either observed or enqueues the NstanceMachine
	// again.
	observed.session = c.notices.Session(observed.shardID)
	if observed.poolMember {
		observed.listed, observed.missing = c.listing(observed.shardID, group).find(observed.instanceID)
	}
	if observed.instanceID == "" {
		return
	}
	if notice, ok := c.notices.Get(observed.shardID, observed.instanceID); ok {
		observed.notice = &notice
	}
	observed.drain.blocked, observed.drain.message, observed.drain.running = c.drains.OfInstance(observed.shardID, observed.instanceID)
}

// listing has the managed instances of a group that a shard lists.
type listing struct {
	instances []shard.Instance
	// complete: if an id is not listed, the group has no such instance. It is false for
	// servers that list no instances, and while the groups of a new shard are not known.
	complete bool
}

func (c *Controller) listing(shardID, group string) listing {
	found, ok := c.groups.Get(shardID, group)
	if !ok {
		// If the shard does not have the group, the group has no instances.
		return listing{complete: c.groups.HasSynced(shardID)}
	}
	return listing{found.Instances, found.ListsInstances}
}

// find returns the instance with an id, nil if it is not listed. missing reports that the
// instance does not exist.
func (l listing) find(id string) (listed *shard.Instance, missing bool) {
	at, ok := slices.BinarySearchFunc(l.instances, id, func(instance shard.Instance, id string) int {
		return strings.Compare(instance.ID, id)
	})
	if !ok {
		return nil, l.complete
	}
	return &l.instances[at], false
}

// location identifies the instance of an NstanceMachine.
type location struct {
	// poolMember: the instance belongs to a pool. Its shard has created it, so that shard and
	// instance id are known from the start, and no create request is sent.
	poolMember bool
	// shardID is "" while no shard is chosen.
	shardID string
	// requestID is the id of the create request. It is "" for a pool member, and while no
	// shard is chosen.
	requestID string
	// instanceID is "" until a shard has created the instance.
	instanceID string
}

// locate returns the location of an NstanceMachine's instance, from the status or, if a
// restore lost the status, from the annotations. An NstanceMachine with a request id is not a
// pool member, whatever its label and owner. The name of a pool member is the id of its
// instance.
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

// inPool reports whether an NstanceMachine was created for an instance of a pool. Any client
// that may change the object can remove the label or the owner, so that one of the two is
// sufficient.
func inPool(nstanceMachine *v1beta1.NstanceMachine) bool {
	_, labelled := nstanceMachine.Labels[clusterv1.MachinePoolNameLabel]
	return labelled || controllers.PoolOf(nstanceMachine) != nil
}

// annotatedRequest returns the shard and the id of the create request in the annotations. The
// operator has not written what is too long for the status.
func annotatedRequest(nstanceMachine *v1beta1.NstanceMachine) (shard, request string, ok bool) {
	shard, request, _ = strings.Cut(nstanceMachine.Annotations[v1beta1.AnnotationRequest], "/")
	return shard, request, shard != "" && len(shard) <= maxShard && request != "" && len(request) <= maxRequest
}

// The longest shard and request id in the CRD.
const (
	maxShard   = 256
	maxRequest = 63
)

// claimant returns the name of another NstanceMachine whose status has the create request that
// this one has only in its annotations, "" if there is no other. An object that is created
// from a copy of another has its annotations.
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

// wantedAnnotations returns the annotations for an NstanceMachine after a sync. The instance
// id is written together with the provider id to save a write: until then, repeating the
// create request returns it.
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
