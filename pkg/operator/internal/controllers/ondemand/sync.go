// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// sync carries out the next step for a Pod and its machine.
func (c *Controller) sync(ctx context.Context, pod types.UID) (time.Duration, error) {
	if pod == allWaiting {
		c.enqueueWaiting(c.pods(), 0)
		return 0, nil
	}
	name := cache.NewObjectName(c.namespace, machineName(pod))
	if !c.nstanceMachineWrites.CaughtUp(name) || !c.machineWrites.CaughtUp(name) {
		return staleRetry, nil
	}
	observed, err := c.observe(pod)
	if err != nil {
		return 0, err
	}
	decided := plan(observed)
	c.dropState(observed, decided.step)

	var wait time.Duration
	switch decided.step {
	case createPair:
		decided.rejection, err = c.createPair(ctx, observed.pod, decided.request)
	case createMachine:
		decided.rejection, err = c.createMachine(ctx, observed.pod)
	case deletePair:
		wait, err = c.deletePair(ctx, observed)
	case deleteStrayMachine:
		err = c.deleteStrayMachine(ctx, observed.machine)
	}
	if observed.pod != nil {
		c.recordRejection(observed.pod, decided.rejection)
	}
	return wait, err
}

// dropState drops claims and rejections of a Pod that no longer apply.
func (c *Controller) dropState(observed observation, decided step) {
	if observed.pod == nil || observed.machine != nil && observed.nstanceMachine != nil && machineProblem(observed.nstanceMachine) == nil {
		c.rejections.drop(observed.uid)
	}
	if decided == createPair {
		return
	}
	if freed, had := c.limiter.release(observed.uid); had && observed.nstanceMachine == nil {
		c.enqueueSlot(freed)
	}
}

func (c *Controller) observe(pod types.UID) (observation, error) {
	observed := observation{uid: pod, podsSynced: c.podsSynced(), pod: c.pod(pod)}
	if observed.pod != nil {
		observed.refused = c.allowed.refuse(observed.pod)
		observed.groups = c.observeGroup(observed.pod.Annotations[v1beta1.AnnotationOnDemandGroup])
	}
	key := cache.NewObjectName(c.namespace, machineName(pod))
	var err error
	if observed.nstanceMachine, err = controller.GetCached(c.nstanceMachineLister.Get, "NstanceMachine", key); err != nil {
		return observation{}, err
	}
	if observed.machine, err = controller.GetCached(c.machineLister.Get, "Machine", key); err != nil {
		return observation{}, err
	}
	if foreign(pod, observed.nstanceMachine) {
		observed.nstanceMachine, observed.nameTaken = nil, true
	}
	if foreign(pod, observed.machine) {
		observed.machine, observed.nameTaken = nil, true
	}
	if observed.cluster, err = controller.GetCached(c.clusterLister.Get, "Cluster", cache.NewObjectName(c.namespace, c.clusterName)); err != nil {
		return observation{}, err
	}
	return observed, nil
}

// observeGroup returns the state of a group on all shards. A group that is being deleted
// accepts no instances. If no shard is known, the configuration has not been read yet.
func (c *Controller) observeGroup(key string) groupState {
	// Most groups exist, which is known without a look at every shard.
	if c.hasGroup(key) {
		return groupState{found: true}
	}
	shards := c.shards.Shards()
	if len(shards) == 0 || slices.ContainsFunc(shards, func(id string) bool { return !c.groups.HasSynced(id) }) {
		return groupState{}
	}
	// The groups of a shard may have become known in between.
	return groupState{found: c.hasGroup(key), complete: true}
}

// hasGroup reports whether the cache has a group of a configured shard that accepts instances.
func (c *Controller) hasGroup(key string) bool {
	return slices.ContainsFunc(c.groups.ShardsWith(key), func(id string) bool {
		group, ok := c.groups.Get(id, key)
		return ok && !group.Deleting && c.shards.Has(id)
	})
}
