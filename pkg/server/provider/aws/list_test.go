// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// TestStates of instances that run or have run.
func TestStates(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		r := request(t)
		m := w.launch(r)
		expect := func(state instance.State, reason string) {
			t.Helper()
			time.Sleep(time.Minute)
			for _, got := range []cloud.VM{w.list()[r.ID], w.find(r.ID), w.findKnown(m)} {
				assert.Equal(t, state, got.State)
				assert.Equal(t, reason, got.Reason)
				assert.Equal(t, m.ProviderID, got.ProviderID)
			}
		}
		expect(instance.Running, "")
		w.Impair(r.ID, "instance-status.status")
		expect(instance.Impaired, "the instance status check fails")
		w.Impair(r.ID, "system-status.status")
		expect(instance.Impaired, "the system status check fails")
		w.Impair(r.ID, "")
		expect(instance.Running, "")
		w.Stop(r.ID)
		expect(instance.Stopped, "the instance is stopped: Client.UserInitiatedShutdown: User initiated shutdown")
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{m}))
		assert.Equal(t, instance.Terminating, w.list()[r.ID].State)
		time.Sleep(time.Minute)
		assert.Empty(t, w.list())
		_, found, err := w.api.FindKnown(t.Context(), m)
		require.NoError(t, err)
		assert.False(t, found)
	})
}

// TestPages: a list of several pages is complete, or an error.
func TestPages(t *testing.T) {
	s := newRegion()
	s.PageSize = 7
	inBubble(t, s, func(t *testing.T, w *world) {
		for range 30 {
			w.launch(request(t))
		}
		time.Sleep(time.Minute)
		w.Calls()
		assert.Len(t, w.list(), 30)
		assert.Equal(t, 5, w.Calls()["DescribeInstances"])
		for page := range 5 {
			w.SetFaults(&ec2test.Fault{Action: "DescribeInstances", Skip: page, Before: true, Status: 500, Code: "InternalError"})
			list, err := w.api.List(t.Context())
			require.Error(t, err, "page %d", page)
			assert.Empty(t, list)
		}
	})
}

// TestFindIsCertain: only a response without an error shows that an instance does not exist.
func TestFindIsCertain(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		r := request(t)
		m := w.launch(r)
		time.Sleep(time.Minute)
		w.list()
		for name, fault := range map[string]*ec2test.Fault{
			"lost connection": {},
			"HTTP 500":        {Status: 500, Code: "InternalError"},
			"HTTP 502":        {Status: 502},
			"HTTP 503":        {Status: 503, Code: "RequestLimitExceeded"},
			"no access":       {Status: 403, Code: "UnauthorizedOperation"},
			"expired":         {Status: 400, Code: "ExpiredToken"},
			"not found":       {Status: 400, Code: "InvalidInstanceID.NotFound", Message: "The instance ID does not exist"},
		} {
			fault.Before, fault.Action = true, "DescribeInstances"
			w.SetFaults(fault)
			_, found, err := w.api.Find(t.Context(), r.ID)
			require.Error(t, err, name)
			assert.False(t, found, name)
			_, found, err = w.api.FindKnown(t.Context(), m)
			require.Error(t, err, name)
			assert.False(t, found, name)
		}
		// Without an instance, the response says nothing of it.
		w.SetFaults(&ec2test.Fault{Action: "DescribeInstances", Before: true, Status: 200})
		_, _, err := w.api.FindKnown(t.Context(), m)
		require.Error(t, err)
		w.SetFaults()
		w.find(r.ID)
		w.findKnown(m)
	})
}
