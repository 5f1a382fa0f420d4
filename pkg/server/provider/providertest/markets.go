// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"maps"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// MarketBackend is implemented by backends of providers with markets.
type MarketBackend interface {
	// SetStock sets whether the backend has capacity for a type in a market. It returns the type
	// with which instances are requested from then on.
	SetStock(t provider.InstanceType, market string, available bool) provider.InstanceType
}

// stockDelay is longer than a provider remembers a lack of capacity, also with the time in which a
// new market is tried.
const stockDelay = time.Hour

// testMarkets: the arguments of a market mean this market, and a lack of spot capacity affects only
// requests for it. The rejected instance is created in another market, with the same id.
func (s *suite) testMarkets() {
	if s.Markets == nil {
		s.t.Skip("the provider has no markets")
	}
	s.expectMarketArgs()
	backend := s.Backend.(MarketBackend)
	limited := backend.SetStock(s.Type, provider.MarketSpot, false)
	h := s.start()
	inMarket := func(market string) provider.Spec {
		s.t.Helper()
		spec := s.spec(workers)
		args, err := s.Markets.MarketArgs(nil, market)
		require.NoError(s.t, err)
		spec.Type, spec.Args = limited, args
		return spec
	}
	spot := inMarket(provider.MarketSpot)
	spot.ID = NewID(s.t)
	err := h.Create(s.t.Context(), spot)
	if err == nil {
		h.Await(workers, map[string]instance.State{spot.ID: Deleted})
		err = h.ExpectFailures(1, workers, spot.ID)[0]
	}
	_, isLack := provider.AsCapacityError(err)
	assert.True(s.t, isLack, "the error is no lack of capacity: %v", err)
	if _, known := h.Get(spot.ID); known {
		s.t.Error("a rejected instance is known")
	}
	check := func(spec provider.Spec) error { return h.Provider.(provider.CapacityChecker).CheckCapacity(spec) }
	assert.Error(s.t, check(spot), "the lack is not known")

	standard := inMarket(provider.MarketStandard)
	standard.ID = spot.ID
	assert.NoError(s.t, check(standard), "the lack affects the other market")
	h.MustRun(standard)
	assert.Error(s.t, check(spot), "the lack is forgotten because of the other market")
	h.ExpectFailures(0, workers, spot.ID)

	limited = backend.SetStock(s.Type, provider.MarketSpot, true)
	spot = inMarket(provider.MarketSpot)
	spot.ID = NewID(s.t)
	for end := time.Now().Add(stockDelay); h.States(workers)[spot.ID] != instance.Running; time.Sleep(10 * time.Second) {
		_ = h.Create(s.t.Context(), spot) // may be rejected for a while
		if time.Now().After(end) {
			s.t.Fatal("there is no spot instance although there is capacity again")
		}
	}
	s.expectCounts(h, 2)
}

// expectCounts expects that so many instances exist and are listed.
func (s *suite) expectCounts(h *Harness, count int) {
	s.t.Helper()
	assert.Len(s.t, s.Instances(), count, "instances that exist")
	assert.Len(s.t, h.List(workers), count, "instances that are listed")
}

// expectMarketArgs expects that arguments of each market mean it, and are not changed again.
func (s *suite) expectMarketArgs() {
	s.t.Helper()
	assert.Equal(s.t, provider.MarketStandard, s.Markets.Market(nil), "the market without arguments")
	args, err := s.Markets.MarketArgs(nil, provider.MarketStandard)
	require.NoError(s.t, err)
	assert.Nil(s.t, args, "the arguments already mean the market")
	for _, from := range []string{provider.MarketStandard, provider.MarketSpot} {
		for _, to := range []string{provider.MarketStandard, provider.MarketSpot} {
			args, err := s.Markets.MarketArgs(nil, from)
			require.NoError(s.t, err)
			before := maps.Clone(args)
			moved, err := s.Markets.MarketArgs(args, to)
			require.NoError(s.t, err)
			assert.Equal(s.t, before, args, "the arguments that were given, from %s to %s", from, to)
			assert.Equal(s.t, to, s.Markets.Market(moved), "from %s", from)
			again, err := s.Markets.MarketArgs(moved, to)
			require.NoError(s.t, err)
			assert.Equal(s.t, moved, again, "arguments that already mean %s", to)
		}
	}
	_, err = s.Markets.MarketArgs(nil, "Elsewhere")
	require.ErrorContains(s.t, err, `market: Unsupported value: "Elsewhere": supported values: "Spot", "Standard"`)
}
