// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// LoadBalancerConfig configures TestLoadBalancers for one provider. All fields are
// mandatory.
type LoadBalancerConfig struct {
	// Run runs a test. For a backend in memory it is synctest.Test, so that time passes at
	// once.
	Run func(*testing.T, func(*testing.T))
	// NewBackend returns a backend with one load balancer, which has no targets.
	NewBackend func(*testing.T) LoadBalancerBackend
}

// LoadBalancerBackend is the cloud that has the load balancers.
type LoadBalancerBackend interface {
	LoadBalancers() provider.LoadBalancers
	// Balancer returns an existing load balancer, and Unknown a load balancer that does not
	// exist.
	Balancer() provider.LoadBalancer
	Unknown() provider.LoadBalancer
	// NewInstance returns a running instance, and Terminate deletes an instance.
	NewInstance() instance.VM
	Terminate(instance.VM)
	// PutOther registers a target of another client.
	PutOther()
	// Others returns how many targets of other clients there are.
	Others() int
	// EndDelays ends the deregistration delays of all targets.
	EndDelays()
	// Fail makes the next calls fail, and LoseResponse the next one after its effect.
	Fail(times int)
	LoseResponse()
}

// balancerSuite is one test with its backend.
type balancerSuite struct {
	LoadBalancerBackend
	t *testing.T
}

// TestLoadBalancers tests that the load balancers of a provider do what
// provider.LoadBalancers documents.
func TestLoadBalancers(t *testing.T, c LoadBalancerConfig) {
	for _, tc := range []struct {
		name string
		test func(balancerSuite)
	}{
		{"a registration is repeated", balancerSuite.testRegister},
		{"a deregistration is repeated", balancerSuite.testDeregister},
		{"a target that drains is registered again", balancerSuite.testRegisterAgain},
		{"what is no target is deregistered", balancerSuite.testDeregisterNone},
		{"a load balancer that does not exist has no targets", balancerSuite.testUnknown},
		{"targets of others are left alone", balancerSuite.testOthers},
		{"a list that fails is an error", balancerSuite.testFailedList},
		{"a lost response changes nothing else", balancerSuite.testLostResponse},
		{"many instances are registered at once", balancerSuite.testMany},
		{"only the leader makes calls", balancerSuite.testLease},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.Run(t, func(t *testing.T) { tc.test(balancerSuite{c.NewBackend(t), t}) })
		})
	}
}

func (s balancerSuite) register(instances ...instance.VM) error {
	return s.LoadBalancers().Register(s.t.Context(), s.Balancer(), instances)
}

func (s balancerSuite) deregister(instances ...instance.VM) error {
	return s.LoadBalancers().Deregister(s.t.Context(), s.Balancer(), instances)
}

// expect checks the states of some instances, and that only these instances and the targets
// of other clients are listed.
func (s balancerSuite) expect(want map[string]provider.TargetState, instances ...instance.VM) {
	s.t.Helper()
	targets, err := s.LoadBalancers().Targets(s.t.Context(), s.Balancer())
	require.NoError(s.t, err)
	got := map[string]provider.TargetState{}
	others := 0
	for _, target := range targets {
		own := false
		for _, vm := range instances {
			if target.ID == vm.ID || target.ID == "" && target.ProviderID == vm.ProviderID {
				got[vm.ID], own = target.State, true
			}
		}
		if !own {
			others++
		}
	}
	assert.Equal(s.t, want, got, "the targets")
	assert.Equal(s.t, s.Others(), others, "the targets of other clients")
}

func (s balancerSuite) testRegister() {
	vm := s.NewInstance()
	s.expect(map[string]provider.TargetState{}, vm)
	for range 2 {
		require.NoError(s.t, s.register(vm))
		s.expect(map[string]provider.TargetState{vm.ID: provider.Registered}, vm)
	}
}

func (s balancerSuite) testDeregister() {
	vm, other := s.NewInstance(), s.NewInstance()
	require.NoError(s.t, s.register(vm, other))
	for range 2 {
		require.NoError(s.t, s.deregister(vm))
		s.expect(map[string]provider.TargetState{vm.ID: provider.Draining, other.ID: provider.Registered}, vm, other)
	}
	s.EndDelays()
	s.expect(map[string]provider.TargetState{other.ID: provider.Registered}, vm, other)
	require.NoError(s.t, s.deregister(vm))
}

func (s balancerSuite) testRegisterAgain() {
	vm := s.NewInstance()
	require.NoError(s.t, s.register(vm))
	require.NoError(s.t, s.deregister(vm))
	require.NoError(s.t, s.register(vm))
	s.expect(map[string]provider.TargetState{vm.ID: provider.Registered}, vm)
	s.EndDelays()
	s.expect(map[string]provider.TargetState{vm.ID: provider.Registered}, vm)
}

func (s balancerSuite) testDeregisterNone() {
	vm, deleted := s.NewInstance(), s.NewInstance()
	require.NoError(s.t, s.deregister(vm), "an instance that was never registered")
	require.NoError(s.t, s.register(deleted))
	s.Terminate(deleted)
	require.NoError(s.t, s.deregister(deleted), "an instance that does not exist any more")
	s.EndDelays()
	s.expect(map[string]provider.TargetState{}, vm, deleted)
}

func (s balancerSuite) testUnknown() {
	vm := s.NewInstance()
	balancers := s.LoadBalancers()
	require.Error(s.t, balancers.Register(s.t.Context(), s.Unknown(), []instance.VM{vm}), "register")
	targets, err := balancers.Targets(s.t.Context(), s.Unknown())
	require.Error(s.t, err, "the list has %v", targets)
}

func (s balancerSuite) testOthers() {
	s.PutOther()
	vm := s.NewInstance()
	require.NoError(s.t, s.register(vm))
	s.expect(map[string]provider.TargetState{vm.ID: provider.Registered}, vm)
	require.NoError(s.t, s.deregister(vm))
	s.EndDelays()
	s.expect(map[string]provider.TargetState{}, vm)
	assert.Equal(s.t, 1, s.Others())
}

func (s balancerSuite) testFailedList() {
	vm := s.NewInstance()
	require.NoError(s.t, s.register(vm))
	s.Fail(1)
	targets, err := s.LoadBalancers().Targets(s.t.Context(), s.Balancer())
	require.Error(s.t, err, "the list has %v", targets)
	s.expect(map[string]provider.TargetState{vm.ID: provider.Registered}, vm)
}

func (s balancerSuite) testLostResponse() {
	vm := s.NewInstance()
	s.LoseResponse()
	require.Error(s.t, s.register(vm))
	require.NoError(s.t, s.register(vm))
	s.expect(map[string]provider.TargetState{vm.ID: provider.Registered}, vm)
	s.LoseResponse()
	require.Error(s.t, s.deregister(vm))
	require.NoError(s.t, s.deregister(vm))
	s.EndDelays()
	s.expect(map[string]provider.TargetState{}, vm)
}

// many is more than clouds accept in one request.
const many = 230

func (s balancerSuite) testMany() {
	instances := make([]instance.VM, many)
	want := map[string]provider.TargetState{}
	for n := range instances {
		instances[n] = s.NewInstance()
		want[instances[n].ID] = provider.Registered
	}
	require.NoError(s.t, s.register(instances...))
	s.expect(want, instances...)
	require.NoError(s.t, s.deregister(instances...))
	s.EndDelays()
	s.expect(map[string]provider.TargetState{}, instances...)
}

func (s balancerSuite) testLease() {
	vm, registered := s.NewInstance(), s.NewInstance()
	require.NoError(s.t, s.register(registered))
	ctx := expired(s.t)
	balancers := s.LoadBalancers()
	require.Error(s.t, balancers.Register(ctx, s.Balancer(), []instance.VM{vm}))
	require.Error(s.t, balancers.Deregister(ctx, s.Balancer(), []instance.VM{registered}))
	s.expect(map[string]provider.TargetState{registered.ID: provider.Registered}, vm, registered)
}

// expired returns the context of a process that was paused until its lease was over. No timer
// has run since.
func expired(t *testing.T) context.Context {
	return deadline.WithLease(t.Context(), func() time.Time { return time.Now().Add(-time.Second) })
}

// MemoryBalancers are a LoadBalancerBackend in memory.
type MemoryBalancers struct {
	*Balancers
	created, failures int
	others            int
}

// NewMemoryBalancers returns a backend in memory.
func NewMemoryBalancers(*testing.T) LoadBalancerBackend {
	b := &MemoryBalancers{Balancers: NewBalancers("web")}
	b.Delay = time.Minute
	b.Called = func(string, string, []string) error {
		if b.failures > 0 {
			b.failures--
			return ErrUnavailable
		}
		return nil
	}
	return b
}

// LoadBalancers returns the load balancers.
func (b *MemoryBalancers) LoadBalancers() provider.LoadBalancers { return b.Balancers }

// Balancer returns a load balancer that exists.
func (b *MemoryBalancers) Balancer() provider.LoadBalancer {
	return provider.LoadBalancer{Key: "web", Settings: BalancerSettings{Endpoint: "web"}}
}

// Unknown returns a load balancer that does not exist.
func (b *MemoryBalancers) Unknown() provider.LoadBalancer {
	return provider.LoadBalancer{Key: "none", Settings: BalancerSettings{Endpoint: "none"}}
}

// NewInstance returns another instance.
func (b *MemoryBalancers) NewInstance() instance.VM {
	b.created++
	return instance.VM{ID: fmt.Sprint("instance-", b.created), ProviderID: fmt.Sprint("machine-", b.created), State: instance.Running}
}

// Terminate removes the target, as clouds do.
func (b *MemoryBalancers) Terminate(vm instance.VM) { b.Remove("web", vm.ID) }

// PutOther registers a target of another client.
func (b *MemoryBalancers) PutOther() {
	b.others++
	b.Put("web", provider.Target{ProviderID: fmt.Sprint("other-", b.others)})
}

// Others returns the number of targets of other clients.
func (b *MemoryBalancers) Others() int {
	others := 0
	for id := range b.States("web") {
		if len(id) > 5 && id[:5] == "other" {
			others++
		}
	}
	return others
}

// EndDelays lets the delay pass.
func (b *MemoryBalancers) EndDelays() { time.Sleep(b.Delay) }

// Fail makes the next calls fail.
func (b *MemoryBalancers) Fail(times int) { b.failures = times }

// LoseResponse makes the next call fail after its effect.
func (b *MemoryBalancers) LoseResponse() { b.LoseResponses(1) }
