// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestAnOutage: for ten minutes the API does not respond, or responds wrongly. No instance
// changes its state or is terminated. Afterwards an instance that has vanished is missing.
func TestAnOutage(t *testing.T) {
	for name, fault := range map[string]*ec2test.Fault{
		"no response":      {Before: true, Hang: true},
		"lost connections": {Before: true},
		"HTTP 500":         {Before: true, Status: http.StatusInternalServerError, Code: "InternalError"},
		"HTTP 502":         {Before: true, Status: http.StatusBadGateway},
		"HTTP 503":         {Before: true, Status: http.StatusServiceUnavailable, Code: "Unavailable"},
		"throttling":       {Before: true, Status: http.StatusServiceUnavailable, Code: "RequestLimitExceeded"},
		"no access":        {Before: true, Status: http.StatusForbidden, Code: "UnauthorizedOperation"},
		"expired":          {Before: true, Status: http.StatusBadRequest, Code: "ExpiredToken"},
		"not found":        {Before: true, Status: http.StatusBadRequest, Code: "InvalidInstanceID.NotFound", Message: "The instance ID does not exist"},
		"empty responses":  {Before: true, Status: http.StatusOK},
		// Lists are empty, and the service does not know any instance.
		"another account": nil,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newRegion(), func(t *testing.T, w *world) {
				cloudtest.Outage{
					Start: w.startProvider,
					Spec:  spec(),
					Begin: func() {
						if fault == nil {
							w.DelayVisibility(24 * time.Hour)
						} else {
							w.SetFaults(fault)
						}
					},
					End: func() {
						w.SetFaults()
						w.DelayVisibility(0)
					},
					Delete: w.Terminate,
					Calls:  w.Calls,
					IsRead: func(call string) bool { return strings.HasPrefix(call, "Describe") },
					Made:   func() int { return len(w.Made()) },
				}.Test(t)
				assert.Empty(t, w.Terminated())
			})
		})
	}
}

// TestAnOutageWhileInstancesAreCreatedAndDeleted delays them.
func TestAnOutageWhileInstancesAreCreatedAndDeleted(t *testing.T) {
	for name, fault := range map[string]*ec2test.Fault{
		"lost responses":   {},
		"lost connections": {Before: true},
		"late responses":   {Hang: true},
		"HTTP 500 after":   {Status: http.StatusInternalServerError, Code: "InternalError"},
		"HTTP 500":         {Before: true, Status: http.StatusInternalServerError, Code: "InternalError"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newRegion(), func(t *testing.T, w *world) {
				h := w.startProvider()
				deleted := h.MustRun(spec())
				w.SetFaults(fault)
				created := h.MustCreate(spec())
				h.MustDelete(deleted)
				time.Sleep(10 * time.Minute)
				w.SetFaults()
				h.Await(workers, map[string]instance.State{created: instance.Running, deleted: providertest.Deleted})
				time.Sleep(10 * time.Minute)
				w.expectMade(deleted, created)
				assert.Equal(t, []string{created}, w.Existing())
			})
		})
	}
}

// TestADeletionThatFindsNoInstance proves nothing: the instance is terminated when the
// service knows it again.
func TestADeletionThatFindsNoInstance(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustRun(spec())
		i := w.Instance(id)
		w.DelayVisibility(24 * time.Hour)
		w.Calls()
		h.MustDelete(id)
		time.Sleep(10 * time.Minute)
		assert.NotZero(t, w.Calls()["TerminateInstances"])
		assert.Equal(t, map[string]instance.State{id: instance.Terminating}, h.States(workers))
		assert.Empty(t, w.Terminated())
		w.DelayVisibility(0)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Equal(t, []string{i.ID}, w.Terminated())
	})
}

// TestARestartDuringAnOutage: the instances that were recorded are not missing while lists
// are empty and the service does not know them, such as with the credentials of another
// account.
func TestARestartDuringAnOutage(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustRun(spec())
		vm, _ := h.Get(id)
		w.DelayVisibility(24 * time.Hour)
		h = w.restart(h, vm)
		for range 60 {
			assert.Equal(t, map[string]instance.State{id: instance.Running}, h.States(workers))
			time.Sleep(10 * time.Second)
		}
		w.DelayVisibility(0)
		time.Sleep(10 * time.Minute)
		got, known := h.Get(id)
		assert.True(t, known)
		assert.True(t, vm.Equal(got))
		assert.Empty(t, w.Terminated())
	})
}

// TestAnInstanceThatTheServiceForgets is missing in the end.
func TestAnInstanceThatTheServiceForgets(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustRun(spec())
		w.Forget(id)
		forgotten := time.Now()
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		if took := time.Since(forgotten); took < notFoundDelay || took > notFoundDelay+5*time.Minute {
			t.Errorf("it is missing after %v", took)
		}
	})
}

// TestTagsThatAreChangedByHand change nothing: an instance that a list no longer shows is
// found by its provider id.
func TestTagsThatAreChangedByHand(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustRun(spec())
		before, _ := h.Get(id)
		h.DrainChanges()
		i := w.Instance(id)
		w.SetTag(id, "Name", "mine")
		w.SetTag(id, "nstance:group", "")
		w.SetTag(id, "nstance:cluster-id", "other")
		time.Sleep(30 * time.Minute)
		after, known := h.Get(id)
		assert.True(t, known)
		assert.True(t, before.Equal(after), "before %v, after %v", before, after)
		assert.Empty(t, h.Changes, "changes")
		h.MustDelete(id)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Equal(t, []string{i.ID}, w.Terminated())
	})
}

// TestBadDays: a zone has no capacity for a type, for spot instances or for any others, and one group
// lacks a permission. No healthy instance is terminated, and the launches of other groups do not wait.
func TestBadDays(t *testing.T) {
	refused := spec()
	refused.Group.Group = "refused"
	other := spec()
	other.Type = otherType
	withRole := refused
	withRole.Args = map[string]any{"iam_instance_profile": "admin"}
	refusedSpot, otherSpot := refused, spec()
	refusedSpot.Args, otherSpot.Args = map[string]any{"market": "spot"}, map[string]any{"market": "spot"}
	for name, tc := range map[string]struct {
		refused, other provider.Spec
		begin          func(w *world)
	}{
		"no capacity for a type": {refused, other, func(w *world) { w.SetFull(testType.Name, ec2test.Zone, "on-demand", true) }},
		"no spot capacity":       {refusedSpot, spec(), func(w *world) { w.SetFull(testType.Name, ec2test.Zone, "spot", true) }},
		"no on-demand capacity": {refused, otherSpot, func(w *world) {
			for _, full := range []provider.InstanceType{testType, otherType} {
				w.SetFull(full.Name, ec2test.Zone, "on-demand", true)
			}
		}},
		"a permission of one group": {withRole, spec(), func(w *world) {
			w.Enforce(ec2test.ReadPolicy(t, "../../../../docs/aws.md", `"prod"`, `"test"`))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, newRegion(), func(t *testing.T, w *world) {
				cloudtest.BadDay{
					Start: w.startProvider, Refused: tc.refused, Other: tc.other,
					Begin: func() { tc.begin(w) }, Terminations: func() int { return len(w.Terminated()) },
				}.Test(t)
			})
		})
	}
}
