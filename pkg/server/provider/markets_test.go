// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestAProviderWithoutMarkets refuses every market, and nothing else.
func TestAProviderWithoutMarkets(t *testing.T) {
	args := map[string]any{"labels": map[string]any{"a": "b"}}
	_, err := provider.MarketArgs(&providertest.Options{}, args, provider.MarketStandard)
	require.EqualError(t, err, "the provider has no markets: a market must not be named")
	got, err := provider.MarketArgs(&providertest.Options{}, args, "")
	require.NoError(t, err)
	assert.Equal(t, args, got)
	assert.Empty(t, provider.MarketOf(&providertest.Options{}, args))
	assert.Empty(t, provider.MarketOf(nil, args))
}

func TestTypeInMarket(t *testing.T) {
	for market, want := range map[string]string{"": "large", "Standard": "large", "Spot": "large spot"} {
		spec := provider.Spec{Type: provider.InstanceType{Name: "large"}, Market: market}
		assert.Equal(t, want, spec.TypeInMarket())
	}
}
