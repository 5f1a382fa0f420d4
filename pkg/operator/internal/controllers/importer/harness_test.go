// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// The resource versions of the caches and of a created pool: before, at and after
// its creation.
const (
	firstVersion   = "500"
	createdVersion = "1000"
	shownVersion   = "2000"
)

// harness is a controller of the groups of shards.
type harness struct {
	*controllertest.Harness
	controller *Controller
	// rejection is the result of creating a pool, if it is set.
	rejection error
}

func newHarness(t *testing.T, shards map[string]*shardtest.Shard, objects ...runtime.Object) *harness {
	t.Helper()
	fake := shardtest.New()
	fake.ByID = shards
	h := &harness{Harness: controllertest.NewHarness(t, fake, objects...)}
	h.SyncKey = func() (time.Duration, error) { return h.controller.sync(h.Ctx, controllertest.Key("main")) }
	h.PrependReactor("create", "nstancemachinepools", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if h.rejection != nil {
			return true, nil, h.rejection
		}
		created := action.(clienttesting.CreateActionImpl)
		pool := created.Object.(*v1beta1.NstanceMachinePool)
		pool.ResourceVersion = createdVersion
		return true, pool, h.Tracker().Create(created.GetResource(), pool, controllertest.Namespace)
	})
	var err error
	h.controller, err = New(h.Dependencies)
	require.NoError(t, err)
	assert.Len(t, h.controller.HasSynced(), 4, "one handler per informer")
	h.show(firstVersion)
	return h
}

// show makes the caches equal to the API server at a resource version.
func (h *harness) show(version string) {
	h.T.Helper()
	h.Show()
	pools := h.Informers.Nstance.NstanceMachinePools().Informer().GetIndexer()
	require.NoError(h.T, pools.Replace(pools.List(), version))
}

// expect syncs the group "main" once, without an error, and compares the writes.
func (h *harness) expect(want ...string) {
	h.T.Helper()
	got, requeue, err := h.SyncStale()
	require.NoError(h.T, err)
	if !slices.Equal(got, want) || requeue != 0 {
		h.T.Errorf("wrote %q and requeued after %s, want %q", got, requeue, want)
	}
}

func (h *harness) pool(name string) *v1beta1.NstanceMachinePool {
	return controllertest.Get[*v1beta1.NstanceMachinePool](h.API, name)
}
