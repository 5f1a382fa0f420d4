// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestMarketArgs: the default arguments count, and an instance template may decide otherwise.
func TestMarketArgs(t *testing.T) {
	template := map[string]any{argInstanceTemplate: gcetest.Template}
	for name, tc := range map[string]struct {
		machine, args map[string]any
		// means is the market of the arguments.
		means, market string
		want          map[string]any
	}{
		"no arguments":               {nil, nil, "Standard", "Standard", nil},
		"no arguments, spot":         {nil, nil, "Standard", "Spot", map[string]any{argProvisioning: spot}},
		"spot by default":            {map[string]any{argProvisioning: spot}, nil, "Spot", "Spot", nil},
		"spot by default, replaced":  {map[string]any{argProvisioning: spot}, nil, "Spot", "Standard", map[string]any{argProvisioning: standard}},
		"no longer spot":             {map[string]any{argProvisioning: spot}, map[string]any{argProvisioning: ""}, "Standard", "Standard", map[string]any{argProvisioning: ""}},
		"a text to be rendered":      {nil, map[string]any{argProvisioning: "{{.Vars.m}}"}, "", "Standard", map[string]any{argProvisioning: standard}},
		"a template":                 {nil, template, "", "Standard", map[string]any{argInstanceTemplate: gcetest.Template, argProvisioning: standard}},
		"a template by default":      {template, nil, "", "Spot", map[string]any{argProvisioning: spot}},
		"the template is taken away": {template, map[string]any{argInstanceTemplate: ""}, "Standard", "Standard", map[string]any{argInstanceTemplate: ""}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &Options{Machine: tc.machine}
			assert.Equal(t, tc.means, provider.MarketOf(o, tc.args))
			got, err := provider.MarketArgs(o, tc.args, tc.market)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
			assert.Equal(t, tc.market, provider.MarketOf(o, got))
		})
	}
	_, err := provider.MarketArgs(&Options{}, map[string]any{argProvisioning: "PREEMPTIBLE"}, "Spot")
	require.EqualError(t, err, `args.provisioning_model: Unsupported value: "PREEMPTIBLE": supported values: "SPOT", "STANDARD"`)
}

// TestAPreemptionBeforeTheFirstRun is a lack of spot machines of the type.
func TestAPreemptionBeforeTheFirstRun(t *testing.T) {
	s := gcetest.New()
	s.BootTime = time.Minute
	inBubble(t, s, func(t *testing.T, w *world) {
		h := w.startProvider()
		check := func(s provider.Spec) error { return h.Provider.(provider.CapacityChecker).CheckCapacity(s) }
		cheap := newSpec(t)
		cheap.Args = map[string]any{argProvisioning: spot}
		ran := h.MustRun(cheap)
		w.Preempt(ran)
		h.Await(workers, map[string]instance.State{ran: instance.Stopped})
		require.NoError(t, check(cheap), "it has run")

		id := h.MustCreate(cheap)
		time.Sleep(30 * time.Second)
		w.Preempt(id)
		h.Await(workers, map[string]instance.State{id: instance.Stopped})
		lack, isLack := provider.AsCapacityError(check(cheap))
		require.True(t, isLack)
		require.EqualError(t, lack, "out of capacity: the launch of e2-small spot has ended for lack of capacity")
		errs := h.ExpectFailures(1, workers, id)
		require.ErrorContains(t, errs[0], "the spot machine was preempted")
		require.NoError(t, check(newSpec(t)), "the other market")
	})
}

// TestAFirstTypeIsKept: the response to the first request is lost, and the instance is requested again
// with another type and another market.
func TestAFirstTypeIsKept(t *testing.T) {
	for name, fault := range map[string]gcetest.Fault{
		"the response was lost": {Call: "instances.insert"},
		"the call was lost":     {Call: "instances.insert", Before: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := gcetest.New()
			s.OperationTime = 3 * time.Minute
			inBubble(t, s, func(t *testing.T, w *world) {
				h := w.startProvider()
				w.SetFaults(&fault)
				spec := newSpec(t)
				spec.ID = h.MustCreate(spec)
				h.Await(workers, map[string]instance.State{spec.ID: providertest.Deleted})
				w.SetFaults()
				spec.Type, spec.Args, spec.Userdata = largeType, map[string]any{argProvisioning: spot}, []byte("another nonce")
				h.MustRun(spec)
				assert.Equal(t, []string{spec.ID}, w.Made())
				made, _ := w.Machine(spec.ID)
				assert.Contains(t, made.Type, testType.Name)
				assert.NotEqual(t, spot, made.Model)
			})
		})
	}
}
