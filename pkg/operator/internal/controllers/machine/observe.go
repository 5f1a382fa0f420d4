// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
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
	// claimedBy is the name of another NstanceMachine that has the create request of the
	// annotations, "" when there is none.
	claimedBy string
	// machine is the Machine that owns the NstanceMachine, nil when there is none.
	machine *clusterv1.Machine
	// machineDeleted: a Machine owned the NstanceMachine, and the API server does not
	// have it any more.
	machineDeleted bool
	// cluster is nil when there is none.
	cluster *clusterv1.Cluster
	// retained: its pool is being deleted, and the pool's instances stay on the shards.
	retained bool
	// paused is what pauses the NstanceMachine, "" when nothing does.
	paused string

	// configured: the shard is in the configuration.
	configured bool
	// reachable: the shard is connected. If not, lost is the reason.
	reachable bool
	lost      error
	// etag is the etag of the group on the shard, "" when the shard does not have it.
	etag string
	// listed is the instance of a pool as its shard lists it, nil when it does not.
	listed *shard.Instance
	// missing: the shard would list the instance if it existed.
	missing bool
	// session is the session of the watch of the shard's notices.
	session int64
	// notice is the deletion notice of the instance, nil when there is none.
	notice *shard.DeletionNotice
	drain  drain
	// providerError is the last error of the provider about the instance, "" when there is
	// none.
	providerError string

	now time.Time
}

// drain is the progress of the drain of the instance's Node.
type drain struct {
	blocked, running bool
	message          string
}

// observe reads the caches. Only a Machine that the cache does not have is read from
// the API server.
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

// observeMachine returns the Machine that owns an NstanceMachine, nil when there is
// none, and whether there was one that was deleted.
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

// observeShard adds what is known of the shard and of the instance.
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

// listing is the managed instances of a group as a shard lists them.
type listing struct {
	instances []shard.Instance
	// complete: an id that is not listed is not an instance of the group. Some
	// servers list nothing, and the groups of a new shard are not known yet.
	complete bool
}

func (c *Controller) listing(shardID, group string) listing {
	found, ok := c.groups.Get(shardID, group)
	if !ok {
		// A group that the shard does not have has no instances.
		return listing{complete: c.groups.HasSynced(shardID)}
	}
	return listing{found.Instances, found.ListsInstances}
}

// find returns the instance with an id, nil when it is not listed, and whether that
// means that it does not exist.
func (l listing) find(id string) (listed *shard.Instance, missing bool) {
	at, ok := slices.BinarySearchFunc(l.instances, id, func(instance shard.Instance, id string) int {
		return strings.Compare(instance.ID, id)
	})
	if !ok {
		return nil, l.complete
	}
	return &l.instances[at], false
}
