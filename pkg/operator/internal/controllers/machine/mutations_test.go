// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// newSettled returns a harness with an NstanceMachine whose instance runs.
func newSettled(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t, newShards("a"), newNstanceMachine("m"))
	for range 10 {
		did, _, err := h.Sync()
		require.NoError(t, err)
		if len(did) == 0 {
			return h
		}
		h.runInstance()
	}
	t.Fatal("it is never settled")
	return nil
}

func TestHandlersSeeWhatASyncDependsOn(t *testing.T) {
	t.Parallel()
	nstanceMachine := newSettled(t).nstanceMachine("m")
	controllertest.ExpectSeen(t, nstanceMachine, trying(t, (*Controller).nstanceMachineChanged, nstanceMachine, func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Nstance.NstanceMachines().Informer()
	}), "Status.Conditions[0].Message") // an error may have another text each time
	controllertest.ExpectSeen(t, newMachine("m"), trying(t, (*Controller).machineChanged, newMachine("m"), func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Machines
	}))
	controllertest.ExpectSeen(t, newCluster(), trying(t, (*Controller).clusterChanged, newCluster(), func(h *harness) cache.SharedIndexInformer {
		return h.Informers.Clusters
	}))
}

// trying returns a function that changes an object of a settled NstanceMachine.
func trying[T controllertest.Object](t *testing.T, handler func(c *Controller, before, after T), before T,
	informer func(*harness) cache.SharedIndexInformer,
) func(changed T) (enqueued, did []string, err error) {
	t.Helper()
	return func(changed T) (enqueued, did []string, err error) {
		h := newSettled(t)
		h.Put(informer(h), changed)
		enqueued = controllertest.Enqueued(t, &h.controller.queue, func() { handler(h.controller, before, changed) })
		did, _, err = h.SyncStale()
		return enqueued, did, err
	}
}
