// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/server/provider/aws/elbtest"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

const (
	arnPrefix  = "arn:aws:elasticloadbalancing:us-test-1:123456789012:targetgroup/"
	webARN     = arnPrefix + "web/0123456789abcdef"
	adminARN   = arnPrefix + "admin/0123456789abcdef"
	unknownARN = arnPrefix + "unknown/0123456789abcdef"
)

// elbBackend is a region with the target groups web and admin.
type elbBackend struct {
	*elbtest.Server
	t         *testing.T
	balancers provider.LoadBalancers
	settings  balancerSettings
	created   int
}

func newELBBackend(t *testing.T) *elbBackend {
	s := elbtest.Start(t)
	s.AddGroup(webARN, 80)
	s.AddGroup(adminARN, 8080)
	p, err := (&Options{LoadBalancerEndpoint: s.URL}).newProvider(testShard, nil, nil)
	require.NoError(t, err)
	return &elbBackend{Server: s, t: t, balancers: p.(provider.LoadBalancers), settings: balancerSettings{arns: []string{webARN}}}
}

func (b *elbBackend) LoadBalancers() provider.LoadBalancers { return b.balancers }

func (b *elbBackend) Balancer() provider.LoadBalancer {
	return provider.LoadBalancer{Key: "web", Settings: b.settings}
}

func (b *elbBackend) Unknown() provider.LoadBalancer {
	return provider.LoadBalancer{Key: "none", Settings: balancerSettings{arns: []string{unknownARN}}}
}

func (b *elbBackend) NewInstance() instance.VM {
	b.created++
	id := fmt.Sprintf("i-%017x", b.created)
	b.SetInstance(id, true)
	return instance.VM{ID: providertest.NewID(b.t), ProviderID: providerID(ec2test.Zone, id), State: instance.Running}
}

func (b *elbBackend) id(vm instance.VM) string {
	id, err := instanceID(vm.ProviderID)
	require.NoError(b.t, err)
	return id
}

func (b *elbBackend) Terminate(vm instance.VM) { b.Server.Terminate(b.id(vm)) }

const otherID = "i-0fffffffffffffff0"

func (b *elbBackend) PutOther() { b.Put(webARN, otherID, 80, elbtest.Healthy) }

func (b *elbBackend) Others() int { return len(b.States(webARN, otherID)) }

func (b *elbBackend) Fail(times int) { b.SetFaults(elbtest.Throttled(times)) }

func (b *elbBackend) LoseResponse() { b.SetFaults(&elbtest.Fault{Times: 1}) }

// list returns the states of the targets by provider id.
func (b *elbBackend) list() map[string]provider.TargetState {
	b.t.Helper()
	targets, err := b.balancers.Targets(b.t.Context(), b.Balancer())
	require.NoError(b.t, err)
	states := map[string]provider.TargetState{}
	for _, target := range targets {
		assert.Empty(b.t, target.ID, "the service does not know instance ids")
		states[target.ProviderID] = target.State
	}
	return states
}

func TestLoadBalancers(t *testing.T) {
	providertest.TestLoadBalancers(t, providertest.LoadBalancerConfig{
		Run:        func(t *testing.T, test func(*testing.T)) { test(t) },
		NewBackend: func(t *testing.T) providertest.LoadBalancerBackend { return newELBBackend(t) },
	})
}

// TestTargetStates: an instance is registered unless all its targets in the group drain.
func TestTargetStates(t *testing.T) {
	b := newELBBackend(t)
	vm := b.NewInstance()
	id := b.id(vm)
	registered := map[string]provider.TargetState{vm.ProviderID: provider.Registered}
	for _, tc := range []struct {
		name, state, otherPort string
		want                   map[string]provider.TargetState
	}{
		{"not registered", "", "", map[string]provider.TargetState{}},
		{"healthy", elbtest.Healthy, "", registered},
		{"being registered", elbtest.Initial, "", registered},
		{"unhealthy, not deregistered", "unhealthy.draining", "", registered},
		{"unused", "unused", "", registered},
		{"registered at one port, drains at the other", elbtest.Draining, elbtest.Healthy, registered},
		{"registered at the other port", elbtest.Healthy, elbtest.Draining, registered},
		{"drains", elbtest.Draining, elbtest.Draining, map[string]provider.TargetState{vm.ProviderID: provider.Draining}},
	} {
		b.Put(webARN, id, 80, tc.state)
		b.Put(webARN, id, 81, tc.otherPort)
		assert.Equal(t, tc.want, b.list(), tc.name)
	}
}

// TestAnEntryIsNoPart: nothing is sent for several target groups at once.
func TestAnEntryIsNoPart(t *testing.T) {
	b := newELBBackend(t)
	b.settings.arns = []string{webARN, adminARN}
	require.ErrorContains(t, b.balancers.Register(t.Context(), b.Balancer(), []instance.VM{b.NewInstance()}), "load balancer web has no single target group")
	assert.Empty(t, b.Calls())
}

// TestPort: with a port, targets with another port do not belong to the part.
func TestPort(t *testing.T) {
	b := newELBBackend(t)
	port := int32(9000)
	b.settings = balancerSettings{arns: []string{webARN}, port: &port}
	vm := b.NewInstance()
	b.Put(webARN, b.id(vm), 80, elbtest.Healthy)
	assert.Empty(t, b.list())
	require.NoError(t, b.balancers.Register(t.Context(), b.Balancer(), []instance.VM{vm}))
	assert.Equal(t, map[string]provider.TargetState{vm.ProviderID: provider.Registered}, b.list())
	require.NoError(t, b.balancers.Deregister(t.Context(), b.Balancer(), []instance.VM{vm}))
	assert.Equal(t, map[int]string{80: elbtest.Healthy, 9000: elbtest.Draining}, b.States(webARN, b.id(vm)))
	assert.Equal(t, map[string]provider.TargetState{vm.ProviderID: provider.Draining}, b.list())
}

// TestParts: each target group of an entry is a part of its own, and with another port it is
// another part.
func TestParts(t *testing.T) {
	port, other := int32(80), int32(8080)
	web, admin := balancerSettings{arns: []string{webARN}}, balancerSettings{arns: []string{adminARN}}
	assert.Equal(t, map[string]provider.LoadBalancerSettings{webARN: web, adminARN: admin}, balancerSettings{arns: []string{adminARN, webARN}}.Parts())
	names := map[string]bool{}
	for _, settings := range []balancerSettings{web, {web.arns, &port}, {web.arns, &other}, {admin.arns, &port}} {
		for name, part := range settings.Parts() {
			assert.Equal(t, settings, part)
			names[name] = true
		}
	}
	assert.Len(t, names, 4)
}

// TestTargetsThatAreNoInstances belong to other clients. An incomplete response is an error.
func TestTargetsThatAreNoInstances(t *testing.T) {
	b := newELBBackend(t)
	b.Put(webARN, "10.0.0.1", 80, elbtest.Healthy)
	targets, err := b.balancers.Targets(t.Context(), b.Balancer())
	require.NoError(t, err)
	assert.Equal(t, []provider.Target{{State: provider.Registered}}, targets)
	b.Put(webARN, "10.0.0.2", 80, elbtest.Unknown)
	targets, err = b.balancers.Targets(t.Context(), b.Balancer())
	require.ErrorContains(t, err, "the response has a target without id or state")
	assert.Empty(t, targets)
}

// TestInstancesThatDoNotRun: registering a stopped instance is an error. An instance that
// does not exist does not keep the others from being deregistered.
func TestInstancesThatDoNotRun(t *testing.T) {
	b := newELBBackend(t)
	var all []instance.VM
	for range 5 {
		all = append(all, b.NewInstance())
	}
	b.SetInstance(b.id(all[0]), false)
	err := b.balancers.Register(t.Context(), b.Balancer(), all)
	require.ErrorContains(t, err, "are not in a running state")
	assert.Empty(t, b.list())
	require.NoError(t, b.balancers.Register(t.Context(), b.Balancer(), all[1:]))
	b.Terminate(all[2])
	b.Calls()
	require.NoError(t, b.balancers.Deregister(t.Context(), b.Balancer(), all))
	want := map[string]provider.TargetState{}
	for _, n := range []int{1, 3, 4} {
		want[all[n].ProviderID] = provider.Draining
	}
	assert.Len(t, b.Calls(), 3, "all, the one that does not exist, the others")
	assert.Equal(t, want, b.list())

	pending := instance.VM{ID: providertest.NewID(t)}
	require.ErrorIs(t, b.balancers.Register(t.Context(), b.Balancer(), []instance.VM{pending}), errNoInstance)
	b.Calls()
	require.NoError(t, b.balancers.Deregister(t.Context(), b.Balancer(), []instance.VM{pending}))
	assert.Empty(t, b.Calls(), "an instance without a provider id was never registered")
}

// TestThrottledTargets are a kind of error of their own, and repeated by the caller only.
func TestThrottledTargets(t *testing.T) {
	b := newELBBackend(t)
	vm := b.NewInstance()
	b.SetFaults(elbtest.Throttled(0))
	for name, err := range map[string]error{
		"register":   b.balancers.Register(t.Context(), b.Balancer(), []instance.VM{vm}),
		"deregister": b.balancers.Deregister(t.Context(), b.Balancer(), []instance.VM{vm}),
		"list":       second(b.balancers.Targets(t.Context(), b.Balancer())),
	} {
		assert.ErrorIs(t, err, cloud.ErrThrottled, name)
	}
	assert.Empty(t, b.Calls())
}

func second[T any](_ T, err error) error { return err }

// TestAnotherRegion: nothing is sent for target groups that the region does not have.
func TestAnotherRegion(t *testing.T) {
	b := newELBBackend(t)
	vm := b.NewInstance()
	b.settings.arns = []string{strings.Replace(webARN, "us-test-1", "us-test-2", 1)}
	for name, err := range map[string]error{
		"register":   b.balancers.Register(t.Context(), b.Balancer(), []instance.VM{vm}),
		"deregister": b.balancers.Deregister(t.Context(), b.Balancer(), []instance.VM{vm}),
		"list":       second(b.balancers.Targets(t.Context(), b.Balancer())),
	} {
		assert.ErrorContains(t, err, "is not the ARN of a target group in region us-test-1", name)
	}
	assert.Empty(t, b.Calls())
}

func TestValidateLoadBalancers(t *testing.T) {
	long := arnPrefix + strings.Repeat("a", 33) + "/0123456789abcdef"
	for _, tc := range []struct{ name, text, want string }{
		{"two target groups", `{"target_group_arns": ["` + webARN + `", "` + adminARN + `"], "port": 443}`, ""},
		{"none", `{}`, "web.target_group_arns: Required value"},
		{"an empty list", `{"target_group_arns": []}`, "web.target_group_arns: Required value"},
		{"an empty ARN", `{"target_group_arns": [""]}`, `web.target_group_arns[0]: Invalid value: "": must be the ARN of a target group`},
		{"a name", `{"target_group_arns": ["web"]}`, `web.target_group_arns[0]: Invalid value: "web": must be the ARN`},
		{"a long name", `{"target_group_arns": ["` + long + `"]}`, "web.target_group_arns[0]: Invalid value"},
		{"a load balancer", `{"target_group_arns": ["arn:aws:elasticloadbalancing:us-test-1:123456789012:loadbalancer/app/web/0123456789abcdef"]}`, "web.target_group_arns[0]: Invalid value"},
		{"another service", `{"target_group_arns": ["` + strings.Replace(webARN, "elasticloadbalancing", "ec2", 1) + `"]}`, "web.target_group_arns[0]: Invalid value"},
		{"a list twice", `{"target_group_arns": ["` + webARN + `", "` + webARN + `"]}`, "web.target_group_arns[1]: Duplicate value"},
		{"another region", `{"target_group_arns": ["` + webARN + `", "` + strings.Replace(adminARN, "us-test-1", "us-test-2", 1) + `"]}`, "must have the region and the account of the others"},
		{"another account", `{"target_group_arns": ["` + webARN + `", "` + strings.Replace(adminARN, "123456789012", "123456789013", 1) + `"]}`, "must have the region and the account of the others"},
		{"a port", `{"target_group_arns": ["` + webARN + `"], "port": 65536}`, "web.port: Invalid value: 65536: must be between 1 and 65535"},
		{"port zero", `{"target_group_arns": ["` + webARN + `"], "port": 0}`, "web.port: Invalid value: 0"},
		{"a type", `{"target_group_arns": "` + webARN + `"}`, "must be a list of strings"},
		{"an unknown field", `{"target_group_arns": ["` + webARN + `"], "zone": "a"}`, "zone: "},
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
