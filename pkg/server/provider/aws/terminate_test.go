// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// policyOf returns the documented policy for the cluster of the tests, with texts replaced.
func policyOf(t *testing.T, replaced ...string) *ec2test.Policy {
	t.Helper()
	return ec2test.ReadPolicy(t, "../../../../docs/aws.md", append([]string{`"prod"`, `"test"`}, replaced...)...)
}

// runAndDelete runs instances, and deletes them after before was called with their ids.
func (w *world) runAndDelete(h *providertest.Harness, count int, before func(ids []string)) []string {
	w.t.Helper()
	var ids []string
	for range count {
		ids = append(ids, h.MustRun(spec()))
	}
	w.Calls()
	before(ids)
	for _, id := range ids {
		h.MustDelete(id)
	}
	return ids
}

// failed returns the instances of the failures that were reported.
func failed(h *providertest.Harness) map[string]int {
	ids := map[string]int{}
	for len(h.Failures) > 0 {
		ids[(<-h.Failures).ID]++
	}
	return ids
}

// TestTerminate: instances that may not be terminated do not keep the others from being
// terminated. Only their failures are reported. An instance that does not exist is no error.
func TestTerminate(t *testing.T) {
	for name, tc := range map[string]struct {
		deny  func(*world, string)
		calls int
	}{
		// The error does not name the instance: it is found by halves.
		"the policy denies it": {func(w *world, id string) { w.SetTag(id, tagClusterID, "other") }, 12},
		// The error names it.
		"it is protected": {func(w *world, id string) { w.Protect(id, true) }, 6},
	} {
		t.Run(name, func(t *testing.T) {
			region := newRegion()
			region.Enforce(policyOf(t))
			inBubble(t, region, func(t *testing.T, w *world) {
				h := w.startProvider()
				ids := w.runAndDelete(h, 10, func(ids []string) {
					tc.deny(w, ids[5])
					w.Forget(ids[3])
				})
				time.Sleep(20 * time.Second)
				assert.Equal(t, []string{ids[5]}, w.Existing(), "instances after 20 seconds")
				first := w.Calls()["TerminateInstances"]
				time.Sleep(15 * time.Minute)
				assert.Equal(t, []string{ids[5]}, w.Existing(), "instances after 15 minutes")
				reported := failed(h)
				assert.Positive(t, reported[ids[5]])
				delete(reported, ids[5])
				delete(reported, ids[3]) // that it is not found is reported
				assert.Empty(t, reported)
				assert.LessOrEqual(t, first, tc.calls, "calls in 20 seconds")
				assert.LessOrEqual(t, w.Calls()["TerminateInstances"], 2*15+5, "calls in the next 15 minutes: every 30 seconds, and some sooner at first")
			})
		})
	}
}

// TestNothingMayBeTerminated: the refused calls leave room for launches. Soon after the
// policy is corrected, all terminations are repeated.
func TestNothingMayBeTerminated(t *testing.T) {
	region := newRegion()
	region.Enforce(policyOf(t, "ec2:TerminateInstances", "ec2:StopInstances"))
	inBubble(t, region, func(t *testing.T, w *world) {
		h := w.startProvider()
		ids := w.runAndDelete(h, 60, func([]string) {})
		time.Sleep(5 * time.Minute)
		assert.ElementsMatch(t, ids, w.Existing())
		w.Calls()
		time.Sleep(5 * time.Minute)
		// Two batches every 30 seconds, with a call for all and four for one.
		assert.LessOrEqual(t, w.Calls()["TerminateInstances"], 10*2*5, "calls in 5 minutes")
		began := time.Now()
		id := h.MustRun(spec())
		assert.Less(t, time.Since(began), time.Minute)
		assert.Subset(t, ids, slices.Collect(maps.Keys(failed(h))))
		w.Enforce(policyOf(t))
		time.Sleep(time.Minute)
		assert.Equal(t, []string{id}, w.Existing())
	})
}

// TestTerminateAMachineThatWasNotSeen, whose launch is only known by its token.
func TestTerminateAMachineThatWasNotSeen(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		m := w.launch(request(t))
		m.ProviderID = ""
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		assert.Empty(t, w.Existing())
		assert.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		m.ID = request(t).ID
		require.ErrorIs(t, w.api.Terminate(t.Context(), []cloud.VM{m})[m.ID], cloud.ErrNotFound)
	})
}

// TestTerminateFails: an error of the service is one for each machine.
func TestTerminateFails(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		list := []cloud.VM{w.launch(request(t)), w.launch(request(t))}
		for _, fault := range []*ec2test.Fault{
			{Before: true, Status: http.StatusInternalServerError, Code: "InternalError"},
			{Before: true, Status: http.StatusForbidden, Code: "UnauthorizedOperation"},
			{Before: true, Status: http.StatusServiceUnavailable, Code: "RequestLimitExceeded"},
			{Before: true},
		} {
			w.SetFaults(fault)
			errs := w.api.Terminate(t.Context(), list)
			assert.Len(t, errs, 2)
			assert.Equal(t, fault.Code == "RequestLimitExceeded", errorIs(errs[list[0].ID], cloud.ErrThrottled))
			assert.Equal(t, fault.Code == "UnauthorizedOperation", errorIs(errs[list[0].ID], cloud.ErrRefusedTogether))
		}
		assert.Len(t, w.Existing(), 2)
	})
}
