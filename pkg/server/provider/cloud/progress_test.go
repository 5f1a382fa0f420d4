// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// slowAPI has launches that take several calls.
type slowAPI struct {
	cloud.API
	// left is how many calls are still in progress, and calls how many there were.
	left, calls atomic.Int32
	// userdata is that of the last call.
	userdata atomic.Value
}

func (a *slowAPI) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	a.calls.Add(1)
	a.userdata.Store(string(r.Userdata))
	if a.left.Add(-1) >= 0 {
		return cloud.VM{}, fmt.Errorf("the machine is copied: %w", cloud.ErrInProgress)
	}
	return a.API.Launch(ctx, r)
}

// runSlow runs a test with launches that take a number of calls.
func runSlow(t *testing.T, calls int32, test func(*testing.T, *providertest.Harness, *cloudtest.Cloud, *slowAPI)) {
	synctest.Test(t, func(t *testing.T) {
		fake := cloudtest.NewCloud()
		api := &slowAPI{API: fake.API(shard)}
		api.left.Store(calls - 1)
		h := providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return cloud.New(api, cloud.Options{CallContext: callContext})
		})
		test(t, h, fake, api)
	})
}

// TestALaunchThatTakesSeveralCalls is continued, and is no failure.
func TestALaunchThatTakesSeveralCalls(t *testing.T) {
	runSlow(t, 10, func(t *testing.T, h *providertest.Harness, fake *cloudtest.Cloud, api *slowAPI) {
		began := time.Now()
		id := h.MustRun(spec("nonce"))
		assert.EqualValues(t, 10, api.calls.Load(), "calls")
		assert.Empty(t, h.Failures, "failures")
		assert.Equal(t, []string{id}, fake.Made())
		if took := time.Since(began); took > 10*fake.Limits.PollInterval+time.Minute {
			t.Errorf("it took %v: the calls are delayed as after failures", took)
		}
	})
}

// TestALaunchInProgressIsDeleted: its machine may exist, so it is searched for.
func TestALaunchInProgressIsDeleted(t *testing.T) {
	runSlow(t, 1000, func(t *testing.T, h *providertest.Harness, fake *cloudtest.Cloud, api *slowAPI) {
		id := h.MustCreate(spec("nonce"))
		time.Sleep(time.Minute)
		h.MustDelete(id)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		calls := api.calls.Load()
		time.Sleep(time.Hour)
		assert.Equal(t, calls, api.calls.Load(), "calls after the deletion")
		assert.Empty(t, fake.Made())
	})
}

// TestALaunchThatTakesLong is requested again, with a nonce that is valid when the machine
// starts. A process that was not there when the instance was recorded does the same.
func TestALaunchThatTakesLong(t *testing.T) {
	runSlow(t, 400, func(t *testing.T, h *providertest.Harness, fake *cloudtest.Cloud, api *slowAPI) {
		began := time.Now()
		s := spec("")
		s.ID, s.CreatedAt = providertest.NewID(t), began.Add(-time.Minute)
		requested, requests := began, 0
		for vm, known := h.Get(s.ID); vm.State != instance.Running; vm, known = h.Get(s.ID) {
			if !known {
				requested, requests = time.Now(), requests+1
				s.Userdata = []byte(fmt.Sprint("nonce ", requests))
				h.MustCreate(s)
			}
			<-h.Changes
		}
		assert.Equal(t, fmt.Sprint("nonce ", requests), api.userdata.Load())
		assert.Greater(t, requests, 5, "requests in %v", time.Since(began))
		if age := time.Since(requested); age > 3*time.Minute {
			t.Errorf("the userdata is %v old", age)
		}
		assert.EqualValues(t, 400, api.calls.Load(), "calls")
		assert.Equal(t, []string{s.ID}, fake.Made())
		assert.Empty(t, h.Failures, "failures")
	})
}

// TestALaunchThatIsRenewedIsDeleted although the provider has no request for it: its machine
// may exist.
func TestALaunchThatIsRenewedIsDeleted(t *testing.T) {
	runSlow(t, 400, func(t *testing.T, h *providertest.Harness, fake *cloudtest.Cloud, _ *slowAPI) {
		id := h.MustCreate(spec("nonce"))
		for _, known := h.Get(id); known; _, known = h.Get(id) {
			<-h.Changes
		}
		assert.Empty(t, fake.Made())
		h.MustDelete(id)
		vm, known := h.Get(id)
		assert.True(t, known, "the deletion is not in progress: %v", vm)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
	})
}
