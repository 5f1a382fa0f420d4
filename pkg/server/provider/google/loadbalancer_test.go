// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestLoadBalancers(t *testing.T) {
	providertest.TestLoadBalancers(t, providertest.LoadBalancerConfig{
		Run:        synctest.Test,
		NewBackend: func(t *testing.T) providertest.LoadBalancerBackend { return newGroupBackend(t) },
	})
}

// inGroups runs a test in a bubble of synctest.
func inGroups(t *testing.T, test func(*testing.T, *groupBackend)) {
	synctest.Test(t, func(t *testing.T) { test(t, newGroupBackend(t)) })
}

// TestUnknownEndpointGroup: the error names the group and the call.
func TestUnknownEndpointGroup(t *testing.T) {
	inGroups(t, func(t *testing.T, b *groupBackend) {
		vm := b.NewInstance()
		b.settings.groups = []string{"none"}
		require.ErrorContains(t, b.register(vm), "attach 1 instances to network endpoint group none: ")
		require.ErrorContains(t, b.deregister(vm), "HTTP 404 notFound")
		_, err := b.balancers.Targets(t.Context(), b.Balancer())
		require.ErrorContains(t, err, "list network endpoint group none")
		b.settings.groups = []string{"web", "admin"}
		require.ErrorContains(t, b.register(vm), "load balancer web has no single network endpoint group")
		assert.Empty(t, b.Endpoints(testShard.Zone, "web", vm.ID))
	})
}

// TestEndpointsWithoutPort belong to a group of the type GCE_VM_IP.
func TestEndpointsWithoutPort(t *testing.T) {
	inGroups(t, func(t *testing.T, b *groupBackend) {
		vm := b.NewInstance()
		b.settings.groups = []string{"admin"}
		require.NoError(t, b.register(vm))
		assert.Equal(t, map[string]provider.TargetState{vm.ID: provider.Registered}, b.list())
		require.NoError(t, b.deregister(vm))
		assert.Equal(t, map[string]provider.TargetState{vm.ID: provider.Draining}, b.list())
	})
}

// TestEndpointPorts: with a port, endpoints with another port do not belong to the part.
func TestEndpointPorts(t *testing.T) {
	inGroups(t, func(t *testing.T, b *groupBackend) {
		vm := b.NewInstance()
		b.settings.groups = []string{"bare"}
		require.ErrorContains(t, b.register(vm), "Port must be specified if the group has no default port")
		port, other := int32(9000), int32(9001)
		b.settings.port = &port
		require.NoError(t, b.register(vm))
		assert.Equal(t, []int{9000}, b.Endpoints(testShard.Zone, "bare", vm.ID))
		b.settings.port = &other
		assert.Empty(t, b.list())
		require.NoError(t, b.register(vm))
		b.settings.port = &port
		require.NoError(t, b.deregister(vm))
		assert.Equal(t, map[string]provider.TargetState{vm.ID: provider.Draining}, b.list())
		b.settings.port = &other
		assert.Equal(t, map[string]provider.TargetState{vm.ID: provider.Registered}, b.list())
		none := int32(9002)
		b.settings.port = &none
		assert.Empty(t, b.list())
	})
}

// TestRefusedEndpoints: only a list proves that an endpoint is attached, or is not.
func TestRefusedEndpoints(t *testing.T) {
	inGroups(t, func(t *testing.T, b *groupBackend) {
		first, second, deleted := b.NewInstance(), b.NewInstance(), b.NewInstance()
		require.NoError(t, b.register(first))
		b.Calls()
		require.NoError(t, b.register(first, second))
		calls := b.Calls()
		assert.Equal(t, 2, calls["compute.networkEndpointGroups.attachNetworkEndpoints"], "all, and the instance that is not attached")
		assert.Equal(t, 1, calls["compute.networkEndpointGroups.listNetworkEndpoints"])
		b.Terminate(deleted)
		b.Calls()
		require.ErrorContains(t, b.register(deleted), "The referenced instance resource cannot be found")
		assert.Equal(t, 1, b.Calls()["compute.networkEndpointGroups.attachNetworkEndpoints"], "a request that is refused as a whole is not repeated")
		require.NoError(t, b.deregister(deleted, first), "one that does not exist")
		assert.Equal(t, map[string]provider.TargetState{
			first.ID: provider.Draining, deleted.ID: provider.Draining, second.ID: provider.Registered,
		}, b.list())

		// The list proves nothing.
		refused := &gcetest.Fault{Call: "NetworkEndpoints", Before: true, Status: http.StatusBadRequest, Code: "invalid", Message: "already attached"}
		b.SetFaults(refused)
		require.Error(t, b.register(second))
		require.Error(t, b.deregister(second))
		refused.Call = "attachNetworkEndpoints"
		b.SetFaults(refused)
		require.ErrorContains(t, b.register(first), "already attached")
		refused.Call = "detachNetworkEndpoints"
		b.SetFaults(refused)
		require.ErrorContains(t, b.deregister(second), "already attached")
		b.SetFaults()
		assert.Equal(t, provider.Registered, b.list()[second.ID])
	})
}

// TestManyEndpoints are attached with several calls, and lists have all pages.
func TestManyEndpoints(t *testing.T) {
	inGroups(t, func(t *testing.T, b *groupBackend) {
		b.PageSize = 200
		var list []instance.VM
		for range endpointBatch + 1 {
			list = append(list, b.NewInstance())
		}
		require.NoError(t, b.register(list...))
		assert.Equal(t, 2, b.Calls()["compute.networkEndpointGroups.attachNetworkEndpoints"])
		assert.Len(t, b.list(), len(list))
		assert.Equal(t, 3, b.Calls()["compute.networkEndpointGroups.listNetworkEndpoints"])
	})
}

// TestDrainingEndpoints: an endpoint is a target until the draining timeout is over, and also
// as long as the API shows that it has connections. The timeout begins with the first call of
// a process.
func TestDrainingEndpoints(t *testing.T) {
	inGroups(t, func(t *testing.T, b *groupBackend) {
		vm := b.NewInstance()
		draining := map[string]provider.TargetState{vm.ID: provider.Draining}
		require.NoError(t, b.register(vm))
		require.NoError(t, b.deregister(vm))
		time.Sleep(drainingTimeout - time.Minute)
		require.NoError(t, b.deregister(vm))
		assert.Equal(t, draining, b.list())
		time.Sleep(time.Minute)
		assert.Empty(t, b.list(), "a repeated call does not begin again")

		require.NoError(t, b.register(vm))
		require.NoError(t, b.deregister(vm))
		time.Sleep(drainingTimeout - time.Minute)
		require.NoError(t, b.register(vm))
		require.NoError(t, b.deregister(vm))
		time.Sleep(2 * time.Minute)
		assert.Equal(t, draining, b.list(), "it was attached again")
		b.balancers = b.process()
		assert.Empty(t, b.list())
		require.NoError(t, b.deregister(vm), "by the next leader")
		assert.Equal(t, draining, b.list())
		time.Sleep(drainingTimeout)
		assert.Empty(t, b.list())

		b.options.DrainingTimeout, b.DrainingTime = 0, time.Hour
		b.balancers = b.process()
		require.NoError(t, b.register(vm))
		require.NoError(t, b.deregister(vm))
		assert.Equal(t, draining, b.list())
		require.NoError(t, b.register(vm))
		assert.Equal(t, map[string]provider.TargetState{vm.ID: provider.Registered}, b.list())
		require.NoError(t, b.deregister(vm))
		time.Sleep(b.DrainingTime)
		assert.Empty(t, b.list())
	})
}

// TestSlowEndpoints: an instance is registered when the operation has finished. That it is
// being deregistered is enough.
func TestSlowEndpoints(t *testing.T) {
	inGroups(t, func(t *testing.T, b *groupBackend) {
		vm := b.NewInstance()
		b.SetOperationTime(time.Minute)
		require.ErrorIs(t, b.register(vm), cloud.ErrInProgress)
		assert.Empty(t, b.list())
		time.Sleep(time.Minute)
		require.NoError(t, b.register(vm))
		require.NoError(t, b.deregister(vm))
		assert.Equal(t, provider.Registered, b.list()[vm.ID])
		time.Sleep(time.Minute)
		assert.Equal(t, provider.Draining, b.list()[vm.ID])
	})
}

// TestFailedEndpointLists: a list that is not complete is an error, and so is a call that is
// throttled.
func TestFailedEndpointLists(t *testing.T) {
	inGroups(t, func(t *testing.T, b *groupBackend) {
		vm := b.NewInstance()
		kind := "compute#networkEndpointGroupsListNetworkEndpoints"
		for _, body := range []map[string]any{
			{}, {"kind": kind, "items": []any{map[string]any{}}},
			{"kind": kind, "warning": map[string]any{"code": "UNREACHABLE"}},
		} {
			b.SetFaults(&gcetest.Fault{Status: http.StatusOK, Body: body})
			_, err := b.balancers.Targets(t.Context(), b.Balancer())
			require.ErrorContains(t, err, "list network endpoint group web")
		}
		throttled := &gcetest.Fault{Before: true, Status: http.StatusTooManyRequests, Code: "rateLimitExceeded"}
		b.SetFaults(throttled)
		require.ErrorIs(t, b.register(vm), cloud.ErrThrottled)
		require.ErrorIs(t, b.deregister(vm), cloud.ErrThrottled)
		assert.Equal(t, 2, b.Seen(throttled), "one request of each call")
		_, err := b.balancers.Targets(t.Context(), b.Balancer())
		require.ErrorIs(t, err, cloud.ErrThrottled)
	})
}

// TestPausedBalancers: a server that loses the leadership between two batches changes only
// the first.
func TestPausedBalancers(t *testing.T) {
	inGroups(t, func(t *testing.T, b *groupBackend) {
		var list []instance.VM
		for range endpointBatch + 1 {
			list = append(list, b.NewInstance())
		}
		ctx, cancel := context.WithTimeout(t.Context(), b.OperationTime)
		defer cancel()
		require.ErrorIs(t, b.balancers.Register(ctx, b.Balancer(), list), context.DeadlineExceeded)
		time.Sleep(b.OperationTime)
		assert.Len(t, b.list(), endpointBatch)
	})
}

// TestParts: each group of an entry is a part of its own, and with another port it is another
// part.
func TestParts(t *testing.T) {
	port, other := int32(80), int32(8080)
	web, admin := balancerSettings{groups: []string{"web"}}, balancerSettings{groups: []string{"admin"}}
	assert.Equal(t, map[string]provider.LoadBalancerSettings{"web": web, "admin": admin}, balancerSettings{groups: []string{"admin", "web"}}.Parts())
	names := map[string]bool{}
	for _, settings := range []balancerSettings{web, {web.groups, &port}, {web.groups, &other}, {admin.groups, &port}} {
		for name, part := range settings.Parts() {
			assert.Equal(t, settings, part)
			names[name] = true
		}
	}
	assert.Len(t, names, 4)
}

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
	b := &groupBackend{Server: s, t: t, options: testOptions(s), settings: balancerSettings{groups: []string{"web"}}}
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
	b.SetFaults(&gcetest.Fault{Times: times, Before: true, Status: http.StatusServiceUnavailable, Code: "backendError"})
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
	for _, target := range targets {
		states[target.ID] = target.State
	}
	return states
}

func TestValidateLoadBalancers(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"two groups", `{"network_endpoint_groups": ["web", "admin"], "port": 443}`, ""},
		{"none", `{}`, "web.network_endpoint_groups: Required value"},
		{"an address", `{"network_endpoint_groups": ["zones/a/networkEndpointGroups/web"]}`, "web.network_endpoint_groups[0]: Invalid value"},
		{"one twice", `{"network_endpoint_groups": ["web", "web"]}`, "web.network_endpoint_groups[1]: Duplicate value"},
		{"a port", `{"network_endpoint_groups": ["web"], "port": 65536}`, "web.port: Invalid value: 65536: must be between 1 and 65535"},
		{"port zero", `{"network_endpoint_groups": ["web"], "port": 0}`, "web.port: Invalid value: 0"},
		{"a type", `{"network_endpoint_groups": "web"}`, "must be a list of strings"},
		{"an unknown field", `{"network_endpoint_groups": ["web"], "zone": "a"}`, "zone: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var errs field.ErrorList
			object, err := jsonc.Parse([]byte(tc.text), &errs)
			require.NoError(t, err)
			settings := (&Options{}).ReadLoadBalancer(object)
			object.Finish()
			errs = append(errs, settings.Validate(field.NewPath("web"))...)
			if tc.want == "" {
				require.Empty(t, errs)
				return
			}
			assert.Contains(t, strings.Join(providertest.Messages(errs), "\n"), tc.want)
		})
	}
}
