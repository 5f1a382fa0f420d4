// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Config configures the conformance suite for one provider. All fields except Markets are
// mandatory.
type Config struct {
	// Run runs a test. For a backend in memory it is synctest.Test, so that time
	// passes at once.
	Run func(*testing.T, func(*testing.T))
	// NewBackend returns an empty backend.
	NewBackend func(*testing.T) Backend
	// Type and OtherType are instance types without a quota.
	Type, OtherType provider.InstanceType
	// Subnet has room for many instances, and LimitedSubnet for two instances. The backend
	// rejects all instances in RejectedSubnet.
	Subnet, LimitedSubnet, RejectedSubnet string
	// QuietPeriod is how long a test waits to see that nothing happens.
	QuietPeriod time.Duration
	// Markets are options of the provider, whose arguments have no market, if it has markets. Then
	// the backend must implement MarketBackend.
	Markets provider.Markets
}

// Backend is the cloud of all providers of a test.
type Backend interface {
	// NewProvider returns a provider that does not run yet. Another provider for the same shard
	// belongs to a process that was restarted.
	NewProvider(shard provider.Shard, callContext provider.CallContextFunc) provider.Provider
	// Instances returns the ids of all instances that exist.
	Instances() []string
	// Delete deletes an instance, like another client.
	Delete(id string)
	// FailCreate and FailDelete make the next calls fail temporarily.
	FailCreate(times int)
	FailDelete(times int)
	// LoseResponse makes the next call to create an instance fail after the
	// instance was created.
	LoseResponse()
	// Calls returns how many calls to create and to delete an instance there were
	// since the last time.
	Calls() (creates, deletes int)
}

// The groups of the suite. The last two have the same name.
var (
	workers      = instance.GroupKey{Tenant: "default", Group: "workers"}
	otherWorkers = instance.GroupKey{Tenant: "other", Group: "workers"}
)

// suite is one test of the suite with its backend.
type suite struct {
	Config
	Backend
	t *testing.T
}

// cases are the tests of Test. docs/providers.md lists them.
var cases = []struct {
	name string
	test func(*suite)
}{
	{"an instance is listed from its creation", (*suite).testCreate},
	{"the same id is the same instance", (*suite).testSameID},
	{"a pending instance is deleted", (*suite).testDeletePending},
	{"a running instance is deleted once", (*suite).testDeleteRunning},
	{"another client deletes an instance", (*suite).testDeletedByOther},
	{"a restart finds the instances", (*suite).testRestart},
	{"shards and clusters do not see each other", (*suite).testShards},
	{"a quota limits pending and running instances", (*suite).testQuota},
	{"a subnet has a capacity", (*suite).testCapacity},
	{"failed calls are reported and retried", (*suite).testFailures},
	{"a lost response creates no second instance", (*suite).testLostResponse},
	{"a rejected request is reported and given up", (*suite).testRejection},
	{"a market without capacity affects no other market", (*suite).testMarkets},
	{"only the leader makes calls", (*suite).testCallContext},
	{"the expected Node has what is certain", (*suite).testExpectedNode},
	{"a provider that is stopped makes no calls", (*suite).testStop},
}

// Test tests that a provider behaves as its interface documents.
func Test(t *testing.T, c Config) {
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c.Run(t, func(t *testing.T) {
				tc.test(&suite{Config: c, Backend: c.NewBackend(t), t: t})
			})
		})
	}
}

// start runs a provider for shard a of cluster test.
func (s *suite) start() *Harness {
	s.t.Helper()
	return s.startFor("test", "a")
}

func (s *suite) startFor(cluster, shard string) *Harness {
	s.t.Helper()
	return Start(s.t, func(callContext provider.CallContextFunc) provider.Provider {
		return s.NewProvider(provider.Shard{ClusterID: cluster, ID: shard, Region: "region", Zone: "zone-" + shard}, callContext)
	})
}

// spec returns the request for an instance of a group.
func (s *suite) spec(group instance.GroupKey) provider.Spec {
	return provider.Spec{
		Group: group, Template: "worker", Kind: "knd", CreatedAt: time.Now(), Type: s.Type, Subnet: s.Subnet,
	}
}

// expectCalls expects the numbers of calls since the last time.
func (s *suite) expectCalls(creates, deletes int) {
	s.t.Helper()
	if c, d := s.Calls(); c != creates || d != deletes {
		s.t.Errorf("there were %d calls to create and %d to delete, want %d and %d", c, d, creates, deletes)
	}
}

// expectVM expects that an instance is the only one of the provider.
func (s *suite) expectVM(h *Harness, want instance.VM) {
	s.t.Helper()
	got, known := h.Get(want.ID)
	if want.ProviderID == "" {
		want.ProviderID = got.ProviderID
	}
	want.Addresses, want.Hostname = got.Addresses, got.Hostname
	if !known || !got.Equal(want) {
		s.t.Errorf("Get returns %v, %t, want %v", got, known, want)
	}
	assert.Empty(s.t, cmp.Diff([]instance.VM{want}, h.List(want.Group)), "List (-want +got)")
	assert.Equal(s.t, []instance.GroupKey{want.Group}, h.Groups(), "Groups")
}

func (s *suite) testCreate() {
	h := s.start()
	assert.Empty(s.t, h.Groups(), "before the first instance the groups")
	id := h.MustCreate(s.spec(workers))
	if vm, known := h.Get(id); !known || vm.State != instance.Pending && vm.State != instance.Running {
		s.t.Errorf("after Create, Get returns %v, %t", vm, known)
	}
	h.Await(workers, map[string]instance.State{id: instance.Running})
	s.expectVM(h, instance.VM{ID: id, Group: workers, State: instance.Running})
	if vm, _ := h.Get(id); vm.ProviderID == "" {
		s.t.Error("a running instance has no provider id")
	}
	assert.Empty(s.t, h.List(otherWorkers), "the group of the same name of another tenant")
	if vm, known := h.Get("unknown"); known {
		s.t.Errorf("an unknown instance is %v", vm)
	}
}

func (s *suite) testSameID() {
	h := s.start()
	spec := s.spec(workers)
	spec.ID, spec.Type.Quota = NewID(s.t), ptr.To[int32](1)
	again := func(states ...instance.State) {
		s.t.Helper()
		require.NoError(s.t, h.Create(s.t.Context(), spec))
		if got := h.States(workers); len(got) != 1 || !slices.Contains(states, got[spec.ID]) {
			s.t.Errorf("instances are %v, want one in state %v", got, states)
		}
	}
	again(instance.Pending, instance.Running)
	again(instance.Pending, instance.Running)
	h.Await(workers, map[string]instance.State{spec.ID: instance.Running})
	again(instance.Running)
	h.Stop()
	h = s.start()
	again(instance.Running)
	s.expectCalls(1, 0)
	h.MustDelete(spec.ID)
	again(instance.Terminating)
	h.Await(workers, map[string]instance.State{spec.ID: Deleted})
	if _, known := h.Get(spec.ID); known || len(h.Groups()) != 0 {
		s.t.Errorf("a deleted instance is known: %t, and its group: %v", known, h.Groups())
	}
	s.expectCalls(0, 1)
}

func (s *suite) testDeletePending() {
	h := s.start()
	id, other := h.MustCreate(s.spec(workers)), h.MustCreate(s.spec(workers))
	h.MustDelete(id)
	if state, listed := h.States(workers)[id]; listed && state != instance.Terminating {
		s.t.Errorf("right after its deletion it is %v", state)
	}
	h.Await(workers, map[string]instance.State{id: Deleted, other: instance.Running})
	if left := s.Instances(); !slices.Equal(left, []string{other}) {
		s.t.Errorf("instances %v exist, want %s", left, other)
	}
}

func (s *suite) testDeleteRunning() {
	h := s.start()
	id, other := h.MustRun(s.spec(workers)), h.MustRun(s.spec(workers))
	s.Calls()
	h.MustDelete(id)
	h.MustDelete(id)
	if state, listed := h.States(workers)[id]; listed && state != instance.Terminating {
		s.t.Errorf("right after its deletion it is %v", state)
	}
	h.Await(workers, map[string]instance.State{id: Deleted, other: instance.Running})
	h.MustDelete(id)
	h.MustDelete("unknown")
	time.Sleep(s.QuietPeriod)
	s.expectCalls(0, 1)
	if len(h.Failures) != 0 {
		s.t.Errorf("failures were reported, the first is %v", <-h.Failures)
	}
}

func (s *suite) testDeletedByOther() {
	h := s.start()
	id := h.MustRun(s.spec(workers))
	s.Delete(id)
	h.Await(workers, map[string]instance.State{id: Ended})
	h.MustDelete(id)
	h.Await(workers, map[string]instance.State{id: Deleted})
	assert.Empty(s.t, h.Groups(), "the groups")
}

func (s *suite) testExpectedNode() {
	h := s.start()
	spec := s.spec(workers)
	spec.CreatedAt, spec.Subnet = time.Time{}, ""
	node := h.ExpectedNode(spec)
	if node == nil {
		return
	}
	if node.Name != "" || node.Spec.ProviderID != "" {
		s.t.Errorf("the Node has name %q and provider id %q, which are not certain", node.Name, node.Spec.ProviderID)
	}
	if arch := node.Status.NodeInfo.Architecture; arch != s.Type.Arch || node.Labels[corev1.LabelArchStable] != arch {
		s.t.Errorf("the architecture is %q and in labels %v, want %q", arch, node.Labels, s.Type.Arch)
	}
	for name, limit := range map[corev1.ResourceName]int64{corev1.ResourceCPU: s.Type.CPU.MilliValue(), corev1.ResourceMemory: s.Type.Memory.MilliValue()} {
		if quantity := node.Status.Capacity[name]; quantity.Sign() <= 0 || quantity.MilliValue() > limit {
			s.t.Errorf("the Node has %s of %s", quantity.String(), name)
		}
	}
	s.expectCalls(0, 0)
	if len(h.Changes) != 0 || len(h.Groups()) != 0 {
		s.t.Error("the Node of an instance was requested")
	}
}

func (s *suite) testStop() {
	h := s.start()
	h.MustCreate(s.spec(workers))
	h.Stop()
	s.Calls()
	time.Sleep(s.QuietPeriod)
	s.expectCalls(0, 0)
}
