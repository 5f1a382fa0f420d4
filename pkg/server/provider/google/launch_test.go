// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/puidv7"
)

// TestLaunch: what a machine is created with, and what another process finds.
func TestLaunch(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		r := request(t)
		r.Origin = instance.Origin{OnDemand: true, IdempotencyKey: "any\ntext", InfraConfigHash: "abc"}
		r.Args = map[string]any{
			argDiskSize: "20Gi", argDiskType: "pd-balanced", argProvisioning: spot, argNetworkTags: []any{"nodes"},
			argServiceAccount: "nodes@test-project.iam.gserviceaccount.com", argLabels: map[string]any{"team": "a"},
			argMetadata: map[string]any{"serial-port-enable": "TRUE"}, argExternalIP: true,
		}
		m := w.launchRunning(r)
		m.State = instance.Running // it has booted since
		require.Len(t, m.Addresses, 1)
		assert.True(t, netip.MustParsePrefix("10.0.0.0/16").Contains(m.Addresses[0]))
		assert.Equal(t, cloud.VM{
			ID: r.ID, ProviderID: "gce://test-project/zone-a/" + r.ID, Group: workers, Origin: r.Origin, Type: "e2-small",
			State: instance.Running, Addresses: m.Addresses, Hostname: r.ID + ".zone-a.c.test-project.internal",
		}, m)
		made, _ := w.Machine(r.ID)
		assert.Equal(t, map[string]string{
			"nstance-managed": "true", "nstance-cluster-id": "test", "nstance-shard": "a", "nstance-instance-id": r.ID,
			"nstance-tenant": "default", "nstance-group": "workers", "nstance-kind": "knd", "nstance-template": "worker",
			"nstance-created-at": r.CreatedAt.Format("2006-01-02t15-04-05z"), "team": "a",
		}, made.Labels)
		assert.Equal(t, "userdata of "+r.ID, made.Userdata)
		assert.NotContains(t, made.Description, "userdata of")
		assert.Equal(t, []string{"nodes"}, made.Tags)
		assert.Equal(t, spot, made.Model)
		assert.Equal(t, map[string]cloud.VM{r.ID: m}, w.list())
		other, found, err := w.newAPI().Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, m, other)
	})
}

// TestAnInstanceTemplate replaces the image.
func TestAnInstanceTemplate(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		w.options.Machine = map[string]any{argInstanceTemplate: gcetest.Template}
		r := request(t)
		w.launch(r)
		assert.Len(t, w.Disks(), 1)
		require.Empty(t, w.api.Terminate(t.Context(), []cloud.VM{{ID: r.ID}}))
		time.Sleep(w.DeleteTime)
		assert.Empty(t, w.Disks())

		w.options.Machine = map[string]any{argInstanceTemplate: "global/instanceTemplates/none"}
		assert.Equal(t, cloud.Scope{Group: workers}, w.rejection(request(t)).Scope)
	})
}

// TestRequestIDs: the first token has the UUID of the instance, and others have their own.
func TestRequestIDs(t *testing.T) {
	r := request(t)
	id, err := puidv7.Parse(r.ID)
	require.NoError(t, err)
	seen := map[string]bool{}
	for n, token := range []string{r.ID, r.ID + ".1", r.ID + ".2"} {
		r.Token = token
		text, err := requestIDOf(r)
		require.NoError(t, err)
		again, err := requestIDOf(r)
		require.NoError(t, err)
		assert.Equal(t, text, again)
		assert.Equal(t, n == 0, text == id.UUID.String())
		seen[text] = true
	}
	assert.Len(t, seen, 3)
}

// TestALostResponse: the same request, by any process, creates nothing more. With other
// userdata it is rejected as used, or gives the operation of the first request.
func TestALostResponse(t *testing.T) {
	for _, lenient := range []bool{false, true} {
		s := gcetest.New()
		s.Lenient = lenient
		inBubble(t, s, func(t *testing.T, w *world) {
			w.SetFaults(&gcetest.Fault{Call: "instances.insert", Times: 1})
			r := request(t)
			_, err := w.api.Launch(t.Context(), r)
			require.Error(t, err)
			require.NotErrorIs(t, err, cloud.ErrTokenUsed)
			m, err := w.newAPI().Launch(t.Context(), r)
			require.NoError(t, err)
			assert.Equal(t, r.ID, m.ID)

			r.Userdata = []byte("another nonce")
			again, err := w.newAPI().Launch(t.Context(), r)
			if lenient {
				require.NoError(t, err)
				assert.Equal(t, m.ProviderID, again.ProviderID)
			} else {
				require.ErrorIs(t, err, cloud.ErrTokenUsed)
			}
			// A further token finds the name.
			r.Token += ".1"
			again, err = w.newAPI().Launch(t.Context(), r)
			require.NoError(t, err)
			assert.Equal(t, m.ProviderID, again.ProviderID)
			assert.Equal(t, []string{r.ID}, w.Made())
		})
	}
}

// TestANameOfAnother is not adopted.
func TestANameOfAnother(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		r := request(t)
		w.launch(r)
		w.Disown(r.ID)
		r.Token += ".1"
		rejection := w.rejection(r)
		require.ErrorContains(t, rejection, "no instance of this shard")
		assert.Equal(t, []string{r.ID}, w.Made())
		_, found, err := w.api.Find(t.Context(), r.ID)
		require.NoError(t, err)
		assert.False(t, found)
	})
}

// TestASlowOperation takes several calls, which give one machine.
func TestASlowOperation(t *testing.T) {
	s := gcetest.New()
	s.OperationTime = time.Minute
	inBubble(t, s, func(t *testing.T, w *world) {
		r := request(t)
		calls := 1
		for ; ; calls++ {
			began := time.Now()
			_, err := w.newAPI().Launch(t.Context(), r)
			assert.Less(t, time.Since(began), 15*time.Second)
			if err == nil {
				break
			}
			require.ErrorIs(t, err, cloud.ErrInProgress)
		}
		assert.Greater(t, calls, 3)
		assert.Equal(t, []string{r.ID}, w.Made())
	})
}

// TestAMachineThatWasDeleted by another client after its launch, whose response was lost: the
// token is used, because the same request would never create it again.
func TestAMachineThatWasDeleted(t *testing.T) {
	inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
		r := request(t)
		w.launch(r)
		w.Remove(r.ID)
		_, err := w.api.Launch(t.Context(), r)
		require.ErrorIs(t, err, cloud.ErrTokenUsed)
		r.Token += ".1"
		w.launch(r)
		assert.Equal(t, []string{r.ID, r.ID}, w.Made())
	})
}

// TestThrottledAfterTheRequest is no throttled launch: the machine may exist.
func TestThrottledAfterTheRequest(t *testing.T) {
	for _, method := range []string{"zoneOperations.get", "instances.get"} {
		inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
			r := request(t)
			w.SetFaults(&gcetest.Fault{Call: method, Before: true, Status: http.StatusForbidden, Code: "rateLimitExceeded", Message: "Rate Limit Exceeded"})
			_, err := w.api.Launch(t.Context(), r)
			require.ErrorIs(t, err, cloud.ErrInProgress)
			require.NotErrorIs(t, err, cloud.ErrThrottled)
			w.SetFaults()
			w.launch(r)
			assert.Equal(t, []string{r.ID}, w.Made())
		})
	}
}

// TestRejections: what an error of a request or of its operation means for other requests.
func TestRejections(t *testing.T) {
	capacity := func(w *world, _ *cloud.Request) { w.SetExhausted("e2-small", standard, true) }
	for _, tc := range []struct {
		name       string
		set        func(*world, *cloud.Request)
		scope      cloud.Scope
		noCapacity bool
		want       string
	}{
		{"no capacity", capacity, cloud.Scope{Type: "e2-small", Market: "Standard"}, true, "out of capacity: the zone has no machine of type e2-small"},
		{"no spot capacity", func(w *world, r *cloud.Request) {
			w.SetExhausted("e2-small", spot, true)
			r.Args = map[string]any{argProvisioning: spot}
		}, cloud.Scope{Type: "e2-small", Market: "Spot"}, true, "out of capacity: the zone has no spot machine"},
		{"no address", func(_ *world, r *cloud.Request) { r.Subnet = "full" }, cloud.Scope{Subnet: "full"}, true, "no address left in subnet full"},
		{"a quota", func(w *world, _ *cloud.Request) { w.SetQuota(0) }, cloud.Scope{Type: "e2-small", Market: "Standard"}, true, "Quota 'CPUS' exceeded"},
		{"a quota of requests", func(w *world, _ *cloud.Request) {
			w.SetFaults(&gcetest.Fault{Call: "insert", Before: true, Status: 403, Code: "quotaExceeded", Message: "Quota 'INSTANCES' exceeded."})
		}, cloud.Scope{Type: "e2-small", Market: "Standard"}, true, "Quota 'INSTANCES' exceeded"},
		{"a quota of spot machines", func(w *world, r *cloud.Request) {
			w.SetQuota(0)
			r.Args = map[string]any{argProvisioning: spot}
		}, cloud.Scope{Type: "e2-small", Market: "Spot"}, true, "no room for type e2-small spot"},
		{"no capacity for a template", func(w *world, r *cloud.Request) {
			capacity(w, r)
			r.Args = map[string]any{argInstanceTemplate: gcetest.Template}
		}, cloud.Scope{Group: workers, Type: "e2-small"}, true, "out of capacity: the zone has no machine of type e2-small"},
		{"a type that the zone does not have", func(w *world, _ *cloud.Request) { w.SetOffered("e2-small", false) },
			cloud.Scope{Type: "e2-small"}, true, "out of capacity: the zone does not offer type e2-small"},
		{"a type that an operation does not find", func(w *world, _ *cloud.Request) {
			w.SetFaults(&gcetest.Fault{Call: "insert", Before: true, Status: 404, Code: "notFound", Message: "The resource 'projects/p/zones/z/machineTypes/e2-small' was not found"})
		}, cloud.Scope{Type: "e2-small"}, true, "out of capacity: the zone does not offer type e2-small"},
		{"no permission", func(w *world, _ *cloud.Request) { w.Deny("projects/"+gcetest.Project, "compute.instances.create") },
			cloud.Scope{}, false, "compute.instances.create"},
		{"no permission for the image", func(w *world, _ *cloud.Request) { w.Deny(gcetest.Image, "compute.images.useReadOnly") },
			cloud.Scope{Group: workers}, false, "compute.images.useReadOnly"},
		{"no permission for the subnetwork", func(w *world, _ *cloud.Request) {
			w.Deny("projects/test-project/regions/region/subnetworks/subnet", "compute.subnetworks.use")
		}, cloud.Scope{Subnet: "subnet"}, false, "compute.subnetworks.use"},
		{"an API that is off", func(w *world, _ *cloud.Request) {
			w.SetFaults(&gcetest.Fault{Call: "insert", Before: true, Status: 403, Code: "accessNotConfigured", Message: "Compute Engine API has not been used in project 1 before or it is disabled."})
		}, cloud.Scope{}, false, "is disabled"},
		{"another refusal", func(w *world, _ *cloud.Request) {
			w.SetFaults(&gcetest.Fault{Call: "insert", Before: true, Status: 403, Code: "forbidden", Message: "You may not do that."})
		}, cloud.Scope{Group: workers}, false, "You may not do that."},
		{"a constraint of the organization", func(w *world, r *cloud.Request) {
			w.Constrain(gcetest.ExternalIPConstraint)
			r.Args = map[string]any{argExternalIP: true}
		}, cloud.Scope{Group: workers}, false, "constraints/compute.vmExternalIpAccess"},
		{"an image that does not exist", func(_ *world, r *cloud.Request) {
			r.Args = map[string]any{argImage: "projects/other/global/images/none"}
		}, cloud.Scope{Group: workers}, false, "was not found"},
		{"a subnetwork that does not exist", func(_ *world, r *cloud.Request) { r.Subnet = "missing" }, cloud.Scope{Group: workers}, false, "subnetwork"},
		{"an unknown failure", func(w *world, _ *cloud.Request) { w.Reject("e2-small", "INTERNAL_ERROR") },
			cloud.Scope{Group: workers, Type: "e2-small", Market: "Standard", Subnet: "subnet"}, false, "INTERNAL_ERROR"},
		{"invalid", func(w *world, _ *cloud.Request) { w.Reject("e2-small", "INVALID_USAGE") }, cloud.Scope{Group: workers}, false, "INVALID_USAGE"},
		{"arguments", func(_ *world, r *cloud.Request) { r.Args = map[string]any{"size": "big"} },
			cloud.Scope{Group: workers}, false, `args.size: Unsupported value: "size"`},
		{"a subnet that is not configured", func(_ *world, r *cloud.Request) { r.Subnet = "other" }, cloud.Scope{Group: workers}, false, `subnet "other"`},
		{"a group with a slash", func(_ *world, r *cloud.Request) { r.Group.Group = "a/b" },
			cloud.Scope{Group: instance.GroupKey{Tenant: "default", Group: "a/b"}}, false, "id of the group"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
				r := request(t)
				tc.set(w, &r)
				rejection := w.rejection(r)
				assert.Equal(t, tc.scope, rejection.Scope)
				require.ErrorContains(t, rejection, tc.want)
				_, noCapacity := provider.AsCapacityError(rejection)
				assert.Equal(t, tc.noCapacity, noCapacity)
				assert.Positive(t, rejection.RetryAfter)
				assert.Empty(t, w.All())
			})
		})
	}
}

// TestUncertainErrors are no rejections: the machine may exist.
func TestUncertainErrors(t *testing.T) {
	for name, fault := range map[string]*gcetest.Fault{
		"500":            {Status: 500, Code: "backendError"},
		"503":            {Status: 503, Code: "backendError"},
		"401":            {Before: true, Status: 401, Code: "authError"},
		"404 of a proxy": {Before: true, Status: 404},
		"403 of a proxy": {Before: true, Status: 403},
		"lost":           {},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
				fault.Call = "instances.insert"
				w.SetFaults(fault)
				_, err := w.api.Launch(t.Context(), request(t))
				require.Error(t, err)
				var rejection *cloud.Rejection
				require.NotErrorAs(t, err, &rejection)
				require.NotErrorIs(t, err, cloud.ErrThrottled)
			})
		})
	}
}

// TestThrottledCalls have changed nothing.
func TestThrottledCalls(t *testing.T) {
	for name, fault := range map[string]*gcetest.Fault{
		"429":                   {Status: 429, Code: "rateLimitExceeded"},
		"rateLimitExceeded":     {Status: 403, Code: "rateLimitExceeded"},
		"userRateLimitExceeded": {Status: 403, Code: "userRateLimitExceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gcetest.New(), func(t *testing.T, w *world) {
				fault.Before = true
				w.SetFaults(fault)
				r := request(t)
				for call, make := range map[string]func(context.Context) error{
					"Launch": func(ctx context.Context) error { _, err := w.api.Launch(ctx, r); return err },
					"List":   func(ctx context.Context) error { _, err := w.api.List(ctx); return err },
					"Find":   func(ctx context.Context) error { _, _, err := w.api.Find(ctx, r.ID); return err },
					"Room":   func(ctx context.Context) error { _, err := w.api.Room(ctx, "subnet"); return err },
					"Terminate": func(ctx context.Context) error {
						return w.api.Terminate(ctx, []cloud.VM{{ID: r.ID}})[r.ID]
					},
				} {
					require.ErrorIs(t, make(t.Context()), cloud.ErrThrottled, call)
				}
			})
		})
	}
}

// TestAnInvalidShard is refused before anything is sent.
func TestAnInvalidShard(t *testing.T) {
	for _, change := range []func(*provider.Shard){
		func(s *provider.Shard) { s.Zone = "a/b" },
		func(s *provider.Shard) { s.Region = "" },
		func(s *provider.Shard) { s.ClusterID = "A" },
		func(s *provider.Shard) { s.ID = `x" OR labels.a = "b` },
	} {
		shard := testShard
		change(&shard)
		_, err := NewAPI(&Options{Project: gcetest.Project}, shard)
		assert.Error(t, err)
	}
	api, err := newAPI(&Options{Project: gcetest.Project}, testShard, nil)
	require.NoError(t, err)
	_, _, err = api.Find(t.Context(), "../other")
	require.ErrorContains(t, err, "is not an instance id")
	assert.ErrorContains(t, api.Terminate(t.Context(), []cloud.VM{{ID: "../other"}})["../other"], "is not an instance id")
}
