// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestAnOutage: for ten minutes the API does not respond, or responds wrongly. No instance
// changes its state or is deleted. Afterwards an instance that has vanished is missing.
func TestAnOutage(t *testing.T) {
	for name, fault := range map[string]*gcetest.Fault{
		"no response":      {Before: true, Hang: true},
		"lost connections": {Before: true},
		"HTTP 500":         {Before: true, Status: 500, Code: "backendError", Message: "Internal error"},
		"HTTP 503":         {Before: true, Status: 503},
		"HTTP 401":         {Before: true, Status: 401, Code: "authError", Message: "Invalid Credentials"},
		"HTTP 403":         {Before: true, Status: 403, Code: "forbidden", Message: "Required 'compute.instances.list' permission"},
		"HTTP 429":         {Before: true, Status: 429, Code: "rateLimitExceeded"},
		"HTTP 404":         {Before: true, Status: 404, Message: "not found"},
		"no project":       {Before: true, Status: 404, Code: "notFound", Message: "The resource 'projects/test-project' was not found"},
		"empty responses":  {Before: true, Status: http.StatusOK, Body: map[string]any{}},
		// Single machines cannot be read then either.
		"empty lists": {Before: true, Call: "instances.list", Status: http.StatusOK, Body: map[string]any{"kind": "compute#instanceList"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
				cloudtest.Outage{
					Start: w.startProvider,
					Spec:  newSpec(t),
					Begin: func() {
						w.SetFaults(fault, &gcetest.Fault{Call: "instances.get", Before: true, Status: 500, Code: "backendError"})
					},
					End:    func() { w.SetFaults() },
					Delete: w.Remove,
					Calls:  w.Calls,
					IsRead: func(call string) bool {
						return !strings.HasSuffix(call, "insert") && !strings.HasSuffix(call, "delete")
					},
					Made: func() int { return len(w.Made()) },
				}.Test(t)
			})
		})
	}
}

// TestADeletionThatFindsNoMachine proves nothing, nor does a list that is empty: the machine
// is deleted when the API knows it again.
func TestADeletionThatFindsNoMachine(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustRun(newSpec(t))
		w.SetFaults(
			&gcetest.Fault{Call: "instances.list", Before: true, Status: http.StatusOK, Body: map[string]any{"kind": "compute#instanceList"}},
			&gcetest.Fault{
				Call: "instances.delete", Before: true, Status: 404, Code: "notFound",
				Message: "The resource 'projects/test-project/zones/zone-a/instances/" + id + "' was not found",
			})
		h.MustDelete(id)
		time.Sleep(10 * time.Minute)
		assert.Equal(t, map[string]instance.State{id: instance.Terminating}, h.States(workers))
		assert.Empty(t, w.Deleted())
		w.SetFaults()
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Equal(t, []string{id}, w.Deleted())
	})
}

// TestAnOutageWhileInstancesAreCreatedAndDeleted delays them.
func TestAnOutageWhileInstancesAreCreatedAndDeleted(t *testing.T) {
	for n, pause := range []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 9 * time.Second, 25 * time.Second} {
		t.Run(pause.String(), func(t *testing.T) {
			inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
				h := w.startProvider()
				deleted := h.MustRun(newSpec(t))
				created := h.MustCreate(newSpec(t))
				h.MustDelete(deleted)
				time.Sleep(pause)
				w.SetFaults(&gcetest.Fault{Before: n%2 == 0, Status: 503 * (n % 3 % 2), Code: "backendError"})
				time.Sleep(10 * time.Minute)
				w.SetFaults()
				for { // the launch needs a request with another nonce
					if _, known := h.Get(created); !known {
						spec := newSpec(t)
						spec.ID, spec.Userdata = created, []byte(fmt.Sprint("nonce ", time.Now()))
						h.MustCreate(spec)
					}
					states := h.States(workers)
					if _, known := states[deleted]; !known && states[created] == instance.Running {
						break
					}
					time.Sleep(time.Second)
				}
				time.Sleep(10 * time.Minute)
				assert.Equal(t, []string{created}, w.All())
				assert.Equal(t, []string{deleted, created}, w.Made())
				assert.Equal(t, []string{deleted}, w.Deleted())
				assert.Len(t, w.Disks(), 1)
			})
		})
	}
}

// TestNothingIsFound: lists are empty, and the API responds that the only machine does not
// exist, by its name. For a while that proves nothing.
func TestNothingIsFound(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustRun(newSpec(t))
		time.Sleep(5 * time.Minute)
		nothing := []*gcetest.Fault{
			{Call: "instances.list", Before: true, Status: http.StatusOK, Body: map[string]any{"kind": "compute#instanceList"}},
			{
				Call: "instances.get", Before: true, Status: http.StatusNotFound, Code: "notFound",
				Message: "The resource 'projects/test-project/zones/zone-a/instances/" + id + "' was not found",
			},
		}
		w.SetFaults(nothing...)
		for range 60 {
			time.Sleep(10 * time.Second)
			assert.Equal(t, map[string]instance.State{id: instance.Running}, h.States(workers))
		}
		w.SetFaults()
		time.Sleep(30 * time.Minute)
		assert.Equal(t, []string{id}, w.All())
		assert.Empty(t, w.Deleted())

		// A deleted virtual machine is missing in the end.
		w.Remove(id)
		time.Sleep(emptyDelay + time.Minute)
		assert.Empty(t, h.States(workers))
	})
}

// TestBadDays: a constraint of the organization, a permission and a lack of capacity concern one
// group. No healthy machine is deleted, and the launches of other groups do not wait.
func TestBadDays(t *testing.T) {
	with := func(args map[string]any) provider.Spec {
		spec := newSpec(t)
		spec.Group, spec.Args = instance.GroupKey{Tenant: "default", Group: "refused"}, args
		return spec
	}
	spotSpec := with(map[string]any{argProvisioning: spot})
	for name, tc := range map[string]struct {
		refused provider.Spec
		begin   func(w *world)
	}{
		"a constraint of the organization": {with(map[string]any{argExternalIP: true}), func(w *world) { w.Constrain(gcetest.ExternalIPConstraint) }},
		"a permission of one group": {with(map[string]any{argInstanceTemplate: gcetest.Template}), func(w *world) {
			w.Deny(gcetest.Template, "compute.instanceTemplates.useReadOnly")
		}},
		"no spot capacity": {spotSpec, func(w *world) { w.SetExhausted(testType.Name, spot, true) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
				if tc.refused.Args[argInstanceTemplate] != nil {
					w.options.Machine = nil
				}
				other := newSpec(t)
				if w.options.Machine == nil {
					other.Args = map[string]any{argImage: gcetest.Image}
				}
				cloudtest.BadDay{
					Start: w.startProvider, Refused: tc.refused, Other: other,
					Begin: func() { tc.begin(w) }, Terminations: func() int { return len(w.Deleted()) },
				}.Test(t)
			})
		})
	}
}

// TestANewLeaderAndALostDescription: the next leader serves the rest of the shard, and keeps the
// machine whose description a user has changed as its record says.
func TestANewLeaderAndALostDescription(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		h := w.startProvider()
		changed, kept := h.MustRun(newSpec(t)), h.MustRun(newSpec(t))
		var records []instance.VM
		for _, id := range []string{changed, kept} {
			vm, _ := h.Get(id)
			records = append(records, vm)
		}
		h.Stop()
		w.SetDescription(changed, "mine")
		h = w.startProvider()
		h.Provider.(provider.Expecter).Expect(records)
		served := h.MustRun(newSpec(t))
		h.MustDelete(served)
		h.Await(workers, map[string]instance.State{served: providertest.Deleted})
		h.MustDelete(changed)
		time.Sleep(time.Hour)
		assert.Equal(t, map[string]instance.State{changed: instance.Terminating, kept: instance.Running}, h.States(workers))
		assert.ElementsMatch(t, []string{changed, kept}, w.All(), "machines: the one that cannot be identified is not terminated")
		errs := h.ExpectFailures(1, workers, changed)
		require.ErrorContains(t, errs[0], "its description does not say of which group its instance is")
	})
}
