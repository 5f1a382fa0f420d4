// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// providerErrors are the last errors of providers about the instances of NstanceMachines,
// by their UID. Servers report when a request fails and not when a later one succeeds, so
// an error counts until the instance runs. The zero value is empty.
type providerErrors struct {
	mu   sync.Mutex
	last map[types.UID]string
}

func (e *providerErrors) set(nstanceMachine types.UID, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last == nil {
		e.last = make(map[types.UID]string)
	}
	e.last[nstanceMachine] = message
}

func (e *providerErrors) get(nstanceMachine types.UID) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last[nstanceMachine]
}

func (e *providerErrors) drop(nstanceMachine types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.last, nstanceMachine)
}

// errorReported stores an error about one instance. Errors about groups are reported by
// their shard groups.
func (c *Controller) errorReported(shardID string, event shard.ErrorEvent) {
	if event.InstanceID == "" {
		return
	}
	for _, nstanceMachine := range c.indexed(byInstance, instanceKey(shardID, event.InstanceID)) {
		c.providerErrors.set(nstanceMachine.UID, event.Message)
		c.queue.AddAfter(cache.MetaObjectToName(nstanceMachine), controller.BatchPeriod)
	}
}
