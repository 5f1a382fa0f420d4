// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/base/poolplan"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/nodeless"
	"nstance.dev/operator/pkg/operator/internal/preferred"
	"nstance.dev/operator/pkg/operator/internal/shortfall"
	"nstance.dev/operator/pkg/operator/shard"
)

// observation has plain values only: plan is a pure function of it.
type observation struct {
	pool *v1beta1.NstanceMachinePool
	// machinePools refer to the pool, which should have exactly one MachinePool.
	machinePools []*clusterv1.MachinePool
	// nameTaken is set if a MachinePool of the pool's name refers to another object.
	nameTaken bool
	// paused names the object that pauses the pool, "" if it is not paused.
	paused string
	// clusterDeleting is set while the Cluster is being deleted.
	clusterDeleting bool
	// orphaned is set if the pool is being deleted, and its MachinePool does not exist.
	orphaned bool
	// shards are in the order of the pool's spec.
	shards []shardState
	// distributable are the shards as package distribute takes them.
	distributable []distribute.Shard
	// shardGroups are the shard groups of the pool, also on shards that it no longer names.
	shardGroups []*v1beta1.NstanceShardGroup
	// nstanceMachines are the NstanceMachines of the pool's instances.
	nstanceMachines []*v1beta1.NstanceMachine
	// candidates are the deletion candidates. They are read only for a scale-down.
	candidates []distribute.Candidate
	// guarded is nil if the pool has no guards.
	guarded *guarded
	// rotationInputs is nil if the pool has no policy for its rotation.
	rotationInputs *rotationInputs
	// remediation is nil if the pool has no policy for remediation, or while the Nodes cannot be seen.
	remediation *remediationDecision
	// mayMove is set when the last move for a shortfall is long enough ago.
	mayMove bool
	// nodeless are the instances that run without a Node.
	nodeless nodeless.Found
	// shortfallWait is when a shortfall becomes due, zero for never.
	shortfallWait time.Duration
}

// shardState is the state of a shard of a pool.
type shardState struct {
	id string
	// configured reports whether the shard is in the configuration.
	configured bool
	// synced reports whether all groups of the shard are known.
	synced bool
	// reachable reports whether the shard is connected.
	reachable bool
	// size is the size of the pool's group on the shard, 0 if the shard has no group or is
	// deleting it.
	size int32
	// reported is the pool's group on the shard, nil if the shard has no group.
	reported *shard.Group
	// draining are the ids of the instances whose deletion the shard has announced. They
	// are read only for guards, rotations and remediation.
	draining sets.Set[string]
	// remediated are the instances that are to be replaced, by id, nil while that is not known.
	remediated map[string]replacementCause
	// shortfallDue reports whether the shard has reported its shortfall for long enough.
	shortfallDue bool
	// group is the shard group of that name, of this pool or another owner.
	group *v1beta1.NstanceShardGroup
}

// guarded has the inputs that only the guards of a pool need.
type guarded struct {
	now time.Time
	// stable is the number at or below which the replicas have been for long enough, and
	// stableAt when that is true of a smaller number, zero for never.
	stable   int32
	stableAt time.Time
	// nodes are by provider id. They are read only for guards that need them.
	nodes map[string]nodeReadiness
}

// nodeReadiness is the readiness of the Node of an instance. The zero value is not ready.
type nodeReadiness struct {
	ready bool
	// since is when the Node became Ready.
	since time.Time
	// problem is why it is not Ready.
	problem string
}

// observe reads the caches.
func (c *Controller) observe(pool *v1beta1.NstanceMachinePool) (observation, error) {
	observed := observation{
		pool:            pool,
		machinePools:    controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool.Name),
		shardGroups:     c.members.ShardGroups(pool),
		nstanceMachines: c.members.NstanceMachines(pool),
	}
	cluster, err := c.cluster()
	if err != nil {
		return observation{}, err
	}
	observed.clusterDeleting = cluster != nil && !cluster.DeletionTimestamp.IsZero()
	observed.paused = pausedBy(cluster, pool, observed.machinePools)
	_, nameTaken, err := c.machinePoolIndex.GetByKey(c.key(pool.Name).String())
	if err != nil {
		return observation{}, fmt.Errorf("read MachinePool %s from the cache: %w", c.key(pool.Name), err)
	}
	observed.nameTaken = nameTaken
	for _, id := range pool.Spec.Shards {
		state, err := c.observeShard(pool, string(id))
		if err != nil {
			return observation{}, err
		}
		observed.shards = append(observed.shards, state)
	}
	var due sets.Set[string]
	due, observed.mayMove, observed.shortfallWait = c.shortfalls.Observe(pool, observed.shortfalls(), c.clock.Now())
	for i := range observed.shards {
		observed.shards[i].shortfallDue = due.Has(observed.shards[i].id)
	}
	observed.nodeless = c.observeNodeless(pool, observed.shards)
	observed.distributable = distributable(pool, observed.shards)
	return observed, nil
}

func (c *Controller) observeShard(pool *v1beta1.NstanceMachinePool, id string) (state shardState, err error) {
	state = shardState{id: id, configured: c.shards.Has(id), synced: c.groups.HasSynced(id)}
	state.reachable, _ = c.groups.Reachable(id)
	if group, ok := c.groups.Get(id, string(pool.Spec.Group)); ok && !group.Deleting {
		state.size, state.reported = group.Size, &group
		if pool.Spec.ScaleDown != nil || pool.Spec.Rotation != nil || pool.Spec.Remediation != nil {
			state.draining = c.drainingOn(id, group.Instances)
		}
	}
	name := v1beta1.ShardGroupName(string(pool.Spec.Group), id)
	state.group, err = controller.GetCached(c.shardGroupLister.Get, "shard group", c.key(name))
	return state, err
}

// drainingOn returns the ids of the instances whose deletion a shard has announced.
func (c *Controller) drainingOn(shard string, instances []shard.Instance) sets.Set[string] {
	draining := sets.New[string]()
	for _, instance := range instances {
		if _, found := c.notices.Get(shard, instance.ID); found {
			draining.Insert(instance.ID)
		}
	}
	return draining
}

// observeGuarded reads what the guards of a pool need. It uses the replicas, which may have
// been read from the API server after observe.
func (c *Controller) observeGuarded(observed *observation) {
	pool := cache.MetaObjectToName(observed.pool)
	guards := observed.pool.Spec.ScaleDown
	if guards == nil || !observed.pool.DeletionTimestamp.IsZero() {
		c.scaleDowns.drop(pool)
		return
	}
	if observed.paused != "" || len(observed.machinePools) != 1 || observed.machinePools[0].Spec.Replicas == nil {
		return
	}
	now, replicas := c.clock.Now(), *observed.machinePools[0].Spec.Replicas
	observed.guarded = &guarded{now: now, stable: replicas}
	if needsReadiness(guards) {
		observed.guarded.nodes = c.readiness(observed.shards)
	}
	stabilization := time.Duration(ptr.Deref(guards.StabilizationSeconds, 0)) * time.Second
	if stabilization == 0 || distribute.Surplus(distribute.Sizes(observed.distributable), replicas) == 0 {
		c.scaleDowns.drop(pool)
		return
	}
	seen := c.scaleDowns.observe(pool, observed.pool.UID, replicas, now)
	observed.guarded.stable, observed.guarded.stableAt = seen.stable(stabilization, now)
}

// readiness returns the readiness of the Nodes of all instances, by provider id.
func (c *Controller) readiness(shards []shardState) map[string]nodeReadiness {
	nodes := map[string]nodeReadiness{}
	for _, shard := range shards {
		for _, id := range providerIDsOf(shard.reported) {
			nodes[id] = c.nodeReadiness(id)
		}
	}
	return nodes
}

// nodeReadiness returns the readiness of the Node with a provider id.
func (c *Controller) nodeReadiness(providerID string) nodeReadiness {
	if providerID == "" {
		return nodeReadiness{problem: "has no provider id"}
	}
	nodes := c.nodes.WithProviderID(providerID)
	switch len(nodes) {
	case 0:
		return nodeReadiness{problem: fmt.Sprintf("has no Node with provider id %q", providerID)}
	case 1:
	default:
		return nodeReadiness{problem: fmt.Sprintf("has %d Nodes with provider id %q", len(nodes), providerID)}
	}
	ready := controllers.ReadyCondition(nodes[0])
	if ready.Status != corev1.ConditionTrue {
		return nodeReadiness{problem: fmt.Sprintf("has Node %q, which is not Ready", nodes[0].Name)}
	}
	return nodeReadiness{ready: true, since: ready.LastTransitionTime.Time}
}

// providerIDsOf returns the provider ids of a group on a shard, which may be nil.
func providerIDsOf(reported *shard.Group) []string {
	switch {
	case reported == nil:
		return nil
	case !reported.ListsInstances:
		return reported.ProviderIDs
	}
	ids := make([]string, len(reported.Instances))
	for i, instance := range reported.Instances {
		ids[i] = instance.ProviderID
	}
	return ids
}

// distributable converts the shards of a pool for package distribute.
func distributable(pool *v1beta1.NstanceMachinePool, shards []shardState) []distribute.Shard {
	converted := make([]distribute.Shard, len(shards))
	for i := range shards {
		converted[i] = shards[i].distributable(pool)
	}
	return converted
}

func (s *shardState) distributable(pool *v1beta1.NstanceMachinePool) distribute.Shard {
	converted := poolplan.NewShard(pool, s.id, s.group, s.size, s.minSize())
	converted.Fixed, converted.Synced = !s.configured, s.synced
	stock := s.stock()
	converted.Stock.Usable, converted.Stock.Missing, converted.Stock.Due = stock.Usable, stock.Missing, stock.Due
	if s.reported == nil {
		return converted
	}
	converted.Reported = &distribute.Group{Size: s.reported.Size, ListsInstances: s.reported.ListsInstances, Running: s.reported.ActualSize}
	for _, instance := range s.reported.Instances {
		pending := instance.State == shard.InstancePending
		converted.Reported.Instances = append(converted.Reported.Instances, distribute.Instance{
			ID:          instance.ID,
			Pending:     pending,
			Uncreated:   pending && instance.ProviderID == "",
			Draining:    s.draining.Has(instance.ID),
			Terminating: instance.State.IsTerminating(),
		})
	}
	return converted
}

// minSize returns the size that the shard keeps at least. The shard group has it while the shard
// is not connected.
func (s *shardState) minSize() int32 {
	switch {
	case !s.configured:
		return 0
	case s.reported != nil:
		return s.reported.MinSize
	case s.group != nil:
		return ptr.Deref(s.group.Status.MinReplicas, 0)
	}
	return 0
}

// stock returns what the server has reported about its capacity.
func (s *shardState) stock() distribute.Stock {
	stock := distribute.Stock{Usable: s.configured && s.synced && s.reachable}
	if stock.Usable && s.reported != nil {
		stock.Missing = s.reported.Shortfall.Missing
		stock.Due = stock.Missing > 0 && s.shortfallDue
	}
	return stock
}

// shortfalls returns the shards and the instances that their servers cannot create.
func (o *observation) shortfalls() []shortfall.Shard {
	shards := make([]shortfall.Shard, len(o.shards))
	for i := range o.shards {
		state := &o.shards[i]
		shards[i] = shortfall.Shard{ID: state.id, Missing: state.stock().Missing}
		if shards[i].Missing > 0 {
			shards[i].Message = state.reported.Shortfall.Message
		}
	}
	return shards
}

// preferredInstances returns the condition PreferredInstances, nil if it stays.
func preferredInstances(observed observation) *metav1.Condition {
	shards := make([]preferred.Shard, len(observed.shards))
	for i, state := range observed.shards {
		link := preferred.Link{Configured: state.configured, Read: state.synced, Connected: state.reachable}
		link.Lost = state.group != nil && meta.IsStatusConditionFalse(state.group.Status.Conditions, v1beta1.ConditionShardReachable)
		shards[i] = preferred.Shard{ID: state.id, Link: link, Group: state.reported}
	}
	before := meta.FindStatusCondition(observed.pool.Status.Conditions, v1beta1.ConditionPreferredInstances)
	return preferred.Condition(shards, observed.pool.Spec.ReturnAfterSeconds != 0, before)
}

// observeNodeless returns the instances of a pool that run without a Node. Nothing is known while
// the cache of Nodes may lack some.
func (c *Controller) observeNodeless(pool *v1beta1.NstanceMachinePool, shards []shardState) nodeless.Found {
	key := cache.MetaObjectToName(pool)
	if !c.nodesSynced() || c.NodesReachable != nil && !c.NodesReachable() {
		c.nodeless.Forget(key)
		return nodeless.Found{}
	}
	var without []nodeless.Instance
	for _, s := range shards {
		// An instance whose shard is not connected may have ended.
		if s.reported == nil || !s.reachable || !s.synced {
			continue
		}
		for _, i := range s.reported.Instances {
			if i.State == shard.InstanceRunning && i.ProviderID != "" && !s.draining.Has(i.ID) && len(c.nodes.WithProviderID(i.ProviderID)) == 0 {
				without = append(without, nodeless.Instance{ID: i.ID, Shard: s.id, ProviderID: i.ProviderID})
			}
		}
	}
	return c.nodeless.Observe(key, pool.UID, without, c.clock.Now())
}

// shapeOf returns the shape of future Nodes of a pool, nil if it is not known: no shard
// reports it, or the report of a shard is missing, which may have less than the others,
// or taints. A first shape does not wait for a shard that is not connected,
// because the pool could not be scaled from zero until then.
func shapeOf(observed observation) *shard.NodeShape {
	known := observed.pool.Status.Capacity != nil || observed.pool.Status.NodeInfo != v1beta1.NodeInfo{}
	var shapes []*shard.NodeShape
	for _, state := range observed.shards {
		if state.reported == nil && (known || state.reachable) {
			return nil
		}
		if state.reported != nil {
			shapes = append(shapes, state.reported.Shape)
		}
	}
	return controllers.WithNodeSettings(controllers.CommonShape(shapes), observed.pool.Spec.Node)
}
