// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"encoding/json"
	"hash/fnv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/marekvs/observe"
)

// memory is what the controller remembers of a cluster between two syncs. After a restart
// it begins anew, which delays removals and changes nothing else.
type memory struct {
	rates   *observe.Rates
	history *observe.History
	nodes   *observe.Nodes
	// applied are the children as they were last written, by kind and name.
	applied map[string]applied
}

// applied is the hash of what was applied, and of the object that it led to.
type applied struct{ wanted, object uint64 }

// gapPeriods is how many syncs may be missing in the history of the load.
const gapPeriods = 4

// memoryOf returns the memory of a cluster. A key is never synced by two workers at a time.
func (c *Controller) memoryOf(cluster types.UID) *memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := c.memories[cluster]
	if !ok {
		m = &memory{
			rates:   observe.NewRates(c.RateWindow),
			history: observe.NewHistory(gapPeriods * c.Period),
			nodes:   &observe.Nodes{},
			applied: map[string]applied{},
		}
		c.memories[cluster] = m
	}
	return m
}

// forget drops the memories of clusters that do not exist.
func (c *Controller) forget() {
	exists := map[types.UID]bool{}
	for _, obj := range c.Informers.Clusters.GetStore().List() {
		if object, ok := obj.(metav1.Object); ok {
			exists[object.GetUID()] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid := range c.memories {
		if !exists[uid] {
			delete(c.memories, uid)
		}
	}
}

// hashOf returns a hash of values that JSON can encode.
func hashOf(values ...any) uint64 {
	hash := fnv.New64a()
	_ = json.NewEncoder(hash).Encode(values)
	return hash.Sum64()
}

// stateOf returns a hash of what others might change of a child.
func stateOf(object metav1.Object, spec any) uint64 {
	return hashOf(object.GetUID(), object.GetLabels(), object.GetAnnotations(), object.GetOwnerReferences(), spec)
}
