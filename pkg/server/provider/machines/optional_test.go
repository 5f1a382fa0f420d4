// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/machines"
	"nstance.dev/operator/pkg/server/provider/machines/machinestest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// untagged is a cloud that finds machines by their provider ids only, as if their tags were
// lost.
type untagged struct {
	machines.API
	lost *atomic.Bool
}

func (u untagged) List(ctx context.Context) ([]machines.Machine, error) {
	if u.lost.Load() {
		return nil, nil
	}
	return u.API.List(ctx)
}

func (u untagged) Find(ctx context.Context, id string) (machines.Machine, bool, error) {
	if u.lost.Load() {
		return machines.Machine{}, false, nil
	}
	return u.API.Find(ctx, id)
}

func (u untagged) FindKnown(ctx context.Context, known machines.Machine) (machines.Machine, bool, error) {
	return u.API.Find(ctx, known.ID)
}

// TestAMachineIsFoundByItsProviderID: it is not missing while neither lists nor its instance
// id show it, and missing when its provider id does not.
func TestAMachineIsFoundByItsProviderID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, lost := machinestest.NewCloud(), new(atomic.Bool)
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return machines.New(untagged{cloud.API(shard), lost}, machines.Options{CallContext: callContext})
		})
		id := h.MustRun(spec("one"))
		lost.Store(true)
		time.Sleep(time.Hour)
		assert.Equal(t, map[string]instance.State{id: instance.Running}, h.States(workers))
		cloud.Vanish(id)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
	})
}

// spotless is a cloud that has no capacity in the market "spot", which userdata names here.
type spotless struct{ machines.API }

func (s spotless) Launch(ctx context.Context, r machines.Request) (machines.Machine, error) {
	if r.Market == "spot" {
		return machines.Machine{}, &machines.Rejection{
			Scope: machines.Scope{Type: r.Type.Name, Market: r.Market}, RetryAfter: time.Hour, Err: provider.OutOfCapacity("no %s", r.Market),
		}
	}
	return s.API.Launch(ctx, r)
}

// TestARejectionOfAMarket does not concern the others.
func TestARejectionOfAMarket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return machines.New(spotless{machinestest.NewCloud().API(shard)}, machines.Options{
				CallContext: callContext, Market: func(s provider.Spec) string { return string(s.Userdata) },
			})
		})
		id := h.MustCreate(spec("spot"))
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		checker := h.Provider.(provider.CapacityChecker)
		require.ErrorContains(t, checker.CheckCapacity(spec("spot")), "out of capacity: no spot")
		require.NoError(t, checker.CheckCapacity(spec("on-demand")))
		again := spec("spot")
		again.ID = providertest.NewID(t)
		require.ErrorContains(t, h.Create(t.Context(), again), "was rejected before: out of capacity: no spot")
		h.MustRun(spec("on-demand"))
		// That a machine of another market was launched does not disprove the rejection.
		require.Error(t, checker.CheckCapacity(spec("spot")))
	})
}
