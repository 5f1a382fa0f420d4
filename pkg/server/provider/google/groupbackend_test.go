// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

const drainingTimeout = 5 * time.Minute

// groupBackend is a project with the network endpoint groups "web", whose endpoints have the
// port 80, "admin", whose endpoints have no port, and "bare", which has no default port.
type groupBackend struct {
	*gcetest.Server
	t         *testing.T
	options   *Options
	balancers provider.LoadBalancers
	settings  balancerSettings
}

func newGroupBackend(t *testing.T) *groupBackend {
	s := gcetest.New()
	s.AddEndpointGroup(testShard.Zone, "web", "GCE_VM_IP_PORT", 80)
	s.AddEndpointGroup(testShard.Zone, "admin", "GCE_VM_IP", 0)
	s.AddEndpointGroup(testShard.Zone, "bare", "GCE_VM_IP_PORT", 0)
	s.AddMachine(testShard.Zone, "other", "subnet")
	s.StartInMemory(t)
	b := &groupBackend{Server: s, t: t, options: testOptions(s), settings: balancerSettings{groups: []string{"web", "admin"}}}
	b.options.DrainingTimeout = drainingTimeout
	b.balancers = b.process()
	return b
}

// process returns the load balancers of another process.
func (b *groupBackend) process() provider.LoadBalancers {
	api, err := newAPI(b.options, testShard, b.Transport())
	require.NoError(b.t, err)
	return newEndpointGroups(api)
}

func (b *groupBackend) LoadBalancers() provider.LoadBalancers { return b.balancers }

func (b *groupBackend) Balancer() provider.LoadBalancer {
	return provider.LoadBalancer{Key: "web", Settings: b.settings}
}

func (b *groupBackend) Unknown() provider.LoadBalancer {
	return provider.LoadBalancer{Key: "none", Settings: balancerSettings{groups: []string{"none"}}}
}

func (b *groupBackend) NewInstance() instance.VM {
	id := providertest.NewID(b.t)
	b.AddMachine(testShard.Zone, id, "subnet")
	return instance.VM{ID: id, ProviderID: "gce://test-project/zone-a/" + id, State: instance.Running}
}

func (b *groupBackend) Terminate(vm instance.VM) { b.Remove(vm.ID) }

func (b *groupBackend) PutOther() { b.PutEndpoint(testShard.Zone, "web", "other", 80) }

func (b *groupBackend) Others() int { return len(b.Endpoints(testShard.Zone, "web", "other")) }

func (b *groupBackend) EndDelays() { time.Sleep(drainingTimeout) }

func (b *groupBackend) Fail(times int) {
	b.SetFaults(&gcetest.Fault{Times: times, Before: true, Status: http.StatusServiceUnavailable, Reason: "backendError"})
}

func (b *groupBackend) LoseResponse() { b.SetFaults(&gcetest.Fault{Times: 1}) }

func (b *groupBackend) register(list ...instance.VM) error {
	return b.balancers.Register(b.t.Context(), b.Balancer(), list)
}

func (b *groupBackend) deregister(list ...instance.VM) error {
	return b.balancers.Deregister(b.t.Context(), b.Balancer(), list)
}

// list returns the states of the targets by instance id.
func (b *groupBackend) list() map[string]provider.TargetState {
	b.t.Helper()
	targets, err := b.balancers.Targets(b.t.Context(), b.Balancer())
	require.NoError(b.t, err)
	states := map[string]provider.TargetState{}
	for _, one := range targets {
		states[one.ID] = one.State
	}
	return states
}
