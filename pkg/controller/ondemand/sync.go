// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

func (c *Controller) sync(ctx context.Context, pod types.UID) (time.Duration, error) {
	name := cache.NewObjectName(c.namespace, machineName(pod))
	if !c.nstanceMachineWrites.Seen(name) || !c.machineWrites.Seen(name) {
		return staleRetry, nil
	}
	seen, err := c.observe(pod)
	if err != nil {
		return 0, err
	}
	decided := plan(seen)
	c.settle(seen, decided.step)

	var wait time.Duration
	switch decided.step {
	case makePair:
		decided.complaint, err = c.makePair(ctx, seen.pod, decided.order)
	case makeMachine:
		decided.complaint, err = c.makeMachine(ctx, seen.pod)
	case removePair:
		wait, err = c.removePair(ctx, seen)
	case removeMachine:
		err = c.removeMachine(ctx, seen.machine)
	}
	if seen.pod != nil {
		c.complain(seen.pod, decided.complaint)
	}
	return wait, err
}

// settle forgets what was remembered about a Pod and is over.
func (c *Controller) settle(seen observation, decided step) {
	if seen.pod == nil || seen.machine != nil && seen.nstanceMachine != nil {
		c.complaints.forget(seen.uid)
	}
	if decided == makePair {
		return
	}
	if freed, had := c.limiter.release(seen.uid); had && seen.nstanceMachine == nil {
		c.wakeSlot(freed)
	}
}

// observe reads the caches.
func (c *Controller) observe(pod types.UID) (observation, error) {
	seen := observation{uid: pod, podsSynced: c.podsSynced(), pod: c.pod(pod)}
	if seen.pod != nil {
		seen.groups = c.observeGroup(seen.pod.Annotations[v1beta1.AnnotationOnDemandGroup])
	}
	var err error
	if seen.nstanceMachine, err = read(c.nstanceMachineLister.Get, machineName(pod)); err != nil {
		return observation{}, fmt.Errorf("read NstanceMachine %s from the cache: %w", machineName(pod), err)
	}
	if seen.machine, err = read(c.machineLister.Get, machineName(pod)); err != nil {
		return observation{}, fmt.Errorf("read Machine %s from the cache: %w", machineName(pod), err)
	}
	if foreign(pod, seen.nstanceMachine) {
		seen.nstanceMachine, seen.nameTaken = nil, true
	}
	if foreign(pod, seen.machine) {
		seen.machine, seen.nameTaken = nil, true
	}
	if seen.cluster, err = read(c.clusterLister.Get, c.clusterName); err != nil {
		return observation{}, fmt.Errorf("read Cluster %s from the cache: %w", c.clusterName, err)
	}
	return seen, nil
}

// read gets an object from a cache, nil when it is not there.
func read[T runtime.Object](get func(string) (T, error), name string) (T, error) {
	object, err := get(name)
	if err != nil {
		var none T
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return none, err
	}
	return object, nil
}

// observeGroup asks all shards for a group. One that is being deleted takes no
// instances any more. No shard at all means that none is known yet.
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
