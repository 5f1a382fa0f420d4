// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

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
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// untagged is a cloud that finds machines by their provider ids only, as if their tags were
// lost.
type untagged struct {
	cloud.API
	lost *atomic.Bool
}

func (u untagged) List(ctx context.Context) ([]cloud.VM, error) {
	if u.lost.Load() {
		return nil, nil
	}
	return u.API.List(ctx)
}

func (u untagged) Find(ctx context.Context, id string) (cloud.VM, bool, error) {
	if u.lost.Load() {
		return cloud.VM{}, false, nil
	}
	return u.API.Find(ctx, id)
}

func (u untagged) FindKnown(ctx context.Context, known cloud.VM) (cloud.VM, bool, error) {
	return u.API.Find(ctx, known.ID)
}

// TestAMachineIsFoundByItsProviderID: it is not missing while neither lists nor its instance
// id show it, and missing when its provider id does not.
func TestAMachineIsFoundByItsProviderID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, lost := cloudtest.NewCloud(), new(atomic.Bool)
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return cloud.New(untagged{fake.API(shard), lost}, cloud.Options{CallContext: callContext})
		})
		id := h.MustRun(spec("one"))
		lost.Store(true)
		time.Sleep(time.Hour)
		assert.Equal(t, map[string]instance.State{id: instance.Running}, h.States(workers))
		fake.Vanish(id)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
	})
}

// spotless is a cloud that has no capacity in the market "spot", which userdata names here.
type spotless struct{ cloud.API }

func (s spotless) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	if r.Market == "spot" {
		return cloud.VM{}, &cloud.Rejection{
			Scope: cloud.Scope{Type: r.Type.Name, Market: r.Market}, RetryAfter: time.Hour, Err: provider.OutOfCapacity("no %s", r.Market),
		}
	}
	return s.API.Launch(ctx, r)
}

// TestARejectionOfAMarket does not concern the others.
func TestARejectionOfAMarket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return cloud.New(spotless{cloudtest.NewCloud().API(shard)}, cloud.Options{
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
