// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest_test

import (
	"testing"
	"testing/synctest"

	"nstance.dev/operator/pkg/server/provider/providertest"
)

// What other tests use instead of a cloud does what a cloud must do.

func TestLoadBalancersInMemory(t *testing.T) {
	providertest.TestLoadBalancers(t, providertest.LoadBalancerConfig{Run: synctest.Test, NewBackend: providertest.NewMemoryBalancers})
}

func TestLeaderNetworkInMemory(t *testing.T) {
	providertest.TestLeaderNetwork(t, providertest.LeaderNetworkConfig{
		Run:        synctest.Test,
		NewBackend: func(*testing.T) providertest.LeaderNetworkBackend { return providertest.NewMemoryNetwork() },
	})
}
