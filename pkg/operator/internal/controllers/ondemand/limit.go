// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// bySlot indexes NstanceMachines by slot.
const bySlot = "slot"

// slot is what the limit applies to: the Pods of one namespace that name one group.
type slot struct{ namespace, group string }

func (s slot) String() string { return s.namespace + "/" + s.group }

// slotOf returns the slot of an NstanceMachine, zero if it was not created for a Pod.
func slotOf(machine *v1beta1.NstanceMachine) slot {
	if _, ok := machine.Labels[v1beta1.LabelPodUID]; !ok {
		return slot{}
	}
	return slot{machine.Annotations[v1beta1.AnnotationPodNamespace], string(machine.Spec.GroupRef.Name)}
}

var slotIndexers = cache.Indexers{bySlot: func(obj any) ([]string, error) {
	if machine, ok := obj.(*v1beta1.NstanceMachine); ok {
		if slot := slotOf(machine); slot.group != "" {
			return []string{slot.String()}, nil
		}
	}
	return nil, nil
}}

// limiter limits the NstanceMachines per slot. It counts those in the cache, and those
// that are being created and are not in the cache yet.
type limiter struct {
	limit int
	index cache.Indexer

	mu      sync.Mutex
	claimed map[types.UID]slot
}

func newLimiter(limit int, index cache.Indexer) *limiter {
	return &limiter{limit: limit, index: index, claimed: make(map[types.UID]slot)}
}

// claim reports whether the machine of a Pod may be created, and counts it from now
// on. A machine that is counted already may be created.
func (l *limiter) claim(pod types.UID, of slot) bool {
	if l.limit <= 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := map[types.UID]bool{}
	for _, machine := range controller.Indexed[v1beta1.NstanceMachine](l.index, bySlot, of.String()) {
		taken[types.UID(machine.Labels[v1beta1.LabelPodUID])] = true
	}
	for uid, slot := range l.claimed {
		if slot == of {
			taken[uid] = true
		}
	}
	if !taken[pod] && len(taken) >= l.limit {
		return false
	}
	l.claimed[pod] = of
	return true
}

// release drops a claim, because the machine is counted in the cache or is not going
// to be created. It returns the slot of the claim, if there was one.
func (l *limiter) release(pod types.UID) (slot, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of, ok := l.claimed[pod]
	delete(l.claimed, pod)
	return of, ok
}
