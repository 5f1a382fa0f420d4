// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestMarketArgs: only what contradicts the market is changed.
func TestMarketArgs(t *testing.T) {
	for name, tc := range map[string]struct {
		args   map[string]any
		market string
		want   map[string]any
	}{
		"no arguments":                  {nil, "Standard", nil},
		"an empty text":                 {map[string]any{"market": ""}, "Standard", map[string]any{"market": ""}},
		"the same":                      {map[string]any{"market": "spot", "spot_max_price": "1"}, "Spot", map[string]any{"market": "spot", "spot_max_price": "1"}},
		"a price of another market":     {map[string]any{"market": "spot", "spot_max_price": "1", "key_name": "k"}, "Standard", map[string]any{"market": "on-demand", "key_name": "k"}},
		"another market":                {map[string]any{"key_name": "k"}, "Spot", map[string]any{"market": "spot", "key_name": "k"}},
		"a template":                    {map[string]any{"market": "{{.Vars.m}}", "spot_max_price": "1"}, "Standard", map[string]any{"market": "on-demand"}},
		"a template, and the other one": {map[string]any{"market": "{{.Vars.m}}"}, "Spot", map[string]any{"market": "spot"}},
		"no market is named":            {map[string]any{"market": "{{.Vars.m}}"}, "", map[string]any{"market": "{{.Vars.m}}"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := provider.MarketArgs(&Options{}, tc.args, tc.market)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
			assert.Empty(t, (&Options{}).ValidateArgs(nil, got))
		})
	}
	for want, args := range map[string]map[string]any{
		`args.market: Unsupported value: "sport": supported values: "on-demand", "spot"`: {"market": "sport"},
		`args.market: Invalid value: 7: must be a string`:                                {"market": 7},
	} {
		_, err := provider.MarketArgs(&Options{}, args, "Spot")
		require.EqualError(t, err, want)
	}
}

// TestAFirstTypeIsKept: the response to the first launch is lost, and the instance is requested again
// with another type and another market. There is a machine of the first type, and no other.
func TestAFirstTypeIsKept(t *testing.T) {
	for name, fault := range map[string]ec2test.Fault{
		"launched, and the response was lost": {Call: "RunInstances"},
		"the call was lost":                   {Call: "RunInstances", Before: true},
		"an error of the service":             {Call: "RunInstances", Status: 500, Code: "InternalError"},
	} {
		for _, renewed := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, newRegion(), func(t *testing.T, w *world) {
					h := w.startProvider()
					fault := fault
					w.SetFaults(&fault)
					s := spec()
					s.ID, s.Origin.InfraConfigHash = providertest.NewID(t), "first"
					h.MustCreate(s)
					time.Sleep(time.Second)
					if renewed {
						w.DelayVisibility(4 * time.Minute)
						// After a minute the request is given back, for other userdata.
						h.Await(workers, map[string]instance.State{s.ID: providertest.Deleted})
						assert.True(t, h.Provider.(provider.Renewer).Renews(s.ID))
					}
					s.Type, s.Origin.InfraConfigHash = otherType, "second"
					s.Args = map[string]any{"market": "spot"}
					s.Userdata = []byte("another nonce")
					// What is rejected is not the first request.
					w.SetFull(otherType.Name, ec2test.Zone, "spot", true)
					require.NoError(t, h.Create(t.Context(), s))
					w.SetFaults()
					h.MustRun(s)
					time.Sleep(10 * time.Minute)
					w.expectMade(s.ID)
					assert.Equal(t, testType.Name, w.Instance(s.ID).Type)
					assert.Equal(t, "on-demand", w.Instance(s.ID).Market)
					vm, _ := h.Get(s.ID)
					assert.Equal(t, "first", vm.Origin.InfraConfigHash)
					assert.Equal(t, map[string]instance.State{s.ID: instance.Running}, h.States(workers))
				})
			})
		}
	}
}

// TestAnotherTypeAfterARejection, also if the response to the first launch was lost and the
// repetition is rejected: then it must be certain first that there is no machine.
func TestAnotherTypeAfterARejection(t *testing.T) {
	for _, lost := range []bool{false, true} {
		inBubble(t, newRegion(), func(t *testing.T, w *world) {
			h := w.startProvider()
			if lost {
				w.SetFaults(&ec2test.Fault{Call: "RunInstances", Before: true, Times: 1})
			}
			w.SetFull(testType.Name, ec2test.Zone, "on-demand", true)
			r := &wanted{Harness: h, world: w, spec: spec()}
			r.during(10 * time.Second)
			first, began := r.id, time.Now()
			r.spec.Type = otherType
			for h.States(workers)[first] != instance.Running && time.Since(began) < time.Hour {
				r.during(5 * time.Second)
			}
			launched := time.Since(began)
			w.expectMade(first)
			assert.Equal(t, otherType.Name, w.Instance(first).Type)
			if lost {
				// No second time of invisibility, as for a token that somebody else has used.
				assert.Less(t, launched, visibilityDelay+time.Minute)
			} else {
				assert.Less(t, launched, time.Minute)
			}
		})
	}
}

// TestATypeThatTheZoneDoesNotOffer is a lack of capacity. Arguments that are not possible with the type
// are none.
func TestATypeThatTheZoneDoesNotOffer(t *testing.T) {
	inBubble(t, newRegion(), func(t *testing.T, w *world) {
		w.SetOffered(testType.Name, ec2test.Zone, false)
		_, err := w.api.Launch(t.Context(), request(t))
		lack, isLack := provider.AsCapacityError(err)
		require.True(t, isLack, "%v", err)
		assert.EqualError(t, lack, "out of capacity: zone us-test-1a does not offer m7i.large")
		for message, want := range map[string]bool{
			"The requested configuration is currently not supported. Please check the documentation for supported configurations.": true,
			"EBS-optimized instances are not supported for your requested configuration.":                                          false,
			"The volume type io2 is not supported in this Availability Zone.":                                                      false,
		} {
			w.SetFaults(&ec2test.Fault{Call: "RunInstances", Before: true, Status: 400, Code: "Unsupported", Message: message})
			_, err := w.api.Launch(t.Context(), request(t))
			_, isLack := provider.AsCapacityError(err)
			assert.Equal(t, want, isLack, message)
		}
	})
}

// TestALaunchThatEndsForLackOfCapacity is a lack of its type and market, for the usual time. Other
// groups and markets are not affected, and a machine that has run before is no such launch.
func TestALaunchThatEndsForLackOfCapacity(t *testing.T) {
	for _, code := range []string{"Server.InsufficientInstanceCapacity", "Server.SpotInstanceTermination"} {
		t.Run(code, func(t *testing.T) {
			inBubble(t, newRegion(), func(t *testing.T, w *world) {
				h := w.startProvider()
				check := func(s provider.Spec) error { return h.Provider.(provider.CapacityChecker).CheckCapacity(s) }
				spot := spec()
				spot.Args = map[string]any{"market": "spot"}

				ran := h.MustRun(spot)
				w.End(ran, code, code+": no capacity")
				h.Await(workers, map[string]instance.State{ran: providertest.Ended})
				require.NoError(t, check(spot), "it has run")
				assert.Empty(t, h.Failures)
				h.MustDelete(ran)

				w.FailLaunches(1, code, code+": no capacity")
				id := h.MustCreate(spot)
				h.Await(workers, map[string]instance.State{id: providertest.Ended})
				errs := h.ExpectFailures(1, workers, id)
				require.ErrorContains(t, errs[0], "no capacity")
				lack, isLack := provider.AsCapacityError(check(spot))
				require.True(t, isLack)
				assert.EqualError(t, lack, "out of capacity: the launch of m7i.large spot has ended for lack of capacity")
				require.NoError(t, check(spec()), "the other market")
				other := spot
				other.Group.Group = "other"
				require.NoError(t, check(other), "another group")
				h.MustDelete(id)
				h.MustRun(spec())
				time.Sleep(2 * time.Minute)
				require.Error(t, check(spot), "a launch in another market proves nothing")
				time.Sleep(time.Minute)
				require.NoError(t, check(spot), "after three minutes")
				h.MustRun(spot)
			})
		})
	}
}
