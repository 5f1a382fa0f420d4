// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// The backends in memory, which replace a cloud in other tests, must behave like a cloud.

func TestLoadBalancersInMemory(t *testing.T) {
	providertest.TestLoadBalancers(t, providertest.LoadBalancerConfig{Run: synctest.Test, NewBackend: providertest.NewMemoryBalancers})
}

func TestLeaderNetworkInMemory(t *testing.T) {
	providertest.TestLeaderNetwork(t, providertest.LeaderNetworkConfig{
		Run:        synctest.Test,
		NewBackend: func(*testing.T) providertest.LeaderNetworkBackend { return providertest.NewMemoryNetwork() },
	})
}

// remoteMachines are a backend whose servers are in other processes.
type remoteMachines struct {
	providertest.LeaderNetworkBackend
	url string
}

func (r remoteMachines) Machine(name string) provider.LeaderNetwork {
	return providertest.RemoteMachine(r.url, name, time.Second)
}

func TestLeaderNetworkOverHTTP(t *testing.T) {
	providertest.TestLeaderNetwork(t, providertest.LeaderNetworkConfig{
		Run: func(t *testing.T, test func(*testing.T)) { test(t) },
		NewBackend: func(t *testing.T) providertest.LeaderNetworkBackend {
			memory := providertest.NewMemoryNetwork()
			api := httptest.NewServer(memory.(http.Handler))
			t.Cleanup(api.Close)
			return remoteMachines{memory, api.URL}
		},
	})
}
