// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// sync brings one Pod and its machine one step further.
func (c *Controller) sync(ctx context.Context, pod types.UID) (time.Duration, error) {
	name := cache.NewObjectName(c.namespace, machineName(pod))
	if !c.nstanceMachineWrites.CaughtUp(name) || !c.machineWrites.CaughtUp(name) {
		return staleRetry, nil
	}
	seen, err := c.observe(pod)
	if err != nil {
		return 0, err
	}
	decided := plan(seen)
	c.dropState(seen, decided.step)

	var wait time.Duration
	switch decided.step {
	case createPair:
		decided.rejection, err = c.createPair(ctx, seen.pod, decided.request)
	case createMachine:
		decided.rejection, err = c.createMachine(ctx, seen.pod)
	case deletePair:
		wait, err = c.deletePair(ctx, seen)
	case deleteStrayMachine:
		err = c.deleteStrayMachine(ctx, seen.machine)
	}
	if seen.pod != nil {
		c.recordRejection(seen.pod, decided.rejection)
	}
	return wait, err
}

// dropState drops what is stored about a Pod and is not needed any more.
func (c *Controller) dropState(seen observation, decided step) {
	if seen.pod == nil || seen.machine != nil && seen.nstanceMachine != nil {
		c.rejections.drop(seen.uid)
	}
	if decided == createPair {
		return
	}
	if freed, had := c.limiter.release(seen.uid); had && seen.nstanceMachine == nil {
		c.enqueueSlot(freed)
	}
}

// observe reads the caches.
func (c *Controller) observe(pod types.UID) (observation, error) {
	seen := observation{uid: pod, podsSynced: c.podsSynced(), pod: c.pod(pod)}
	if seen.pod != nil {
		seen.groups = c.observeGroup(seen.pod.Annotations[v1beta1.AnnotationOnDemandGroup])
	}
	key := cache.NewObjectName(c.namespace, machineName(pod))
	var err error
	if seen.nstanceMachine, err = controller.GetCached(c.nstanceMachineLister.Get, "NstanceMachine", key); err != nil {
		return observation{}, err
	}
	if seen.machine, err = controller.GetCached(c.machineLister.Get, "Machine", key); err != nil {
		return observation{}, err
	}
	if foreign(pod, seen.nstanceMachine) {
		seen.nstanceMachine, seen.nameTaken = nil, true
	}
	if foreign(pod, seen.machine) {
		seen.machine, seen.nameTaken = nil, true
	}
	if seen.cluster, err = controller.GetCached(c.clusterLister.Get, "Cluster", cache.NewObjectName(c.namespace, c.clusterName)); err != nil {
		return observation{}, err
	}
	return seen, nil
}

// observeGroup returns what all shards report about a group. A group that is being
// deleted accepts no instances. Without any shard the configuration is not known yet.
func (c *Controller) observeGroup(key string) groupState {
	shards := c.shards.Shards()
	state := groupState{complete: len(shards) > 0}
	for _, id := range shards {
		if group, ok := c.groups.Get(id, key); ok && !group.Deleting {
			return groupState{found: true}
		}
		state.complete = state.complete && c.groups.HasSynced(id)
	}
	others := sets.New[string]()
	for _, id := range shards {
		for _, group := range c.groups.List(id) {
			if !group.Deleting {
				others.Insert(group.Key)
			}
		}
	}
	state.others = slices.Sorted(maps.Keys(others))
	return state
}
