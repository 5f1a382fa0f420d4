// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/metricstest"
	"nstance.dev/operator/pkg/testing/tier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// balanced are the options of a server whose template worker has a load balancer.
func balanced(balancers *providertest.Balancers) servertest.Options {
	return servertest.Options{
		InMemory:      true,
		DrainTimeout:  "2m",
		Balancers:     balancers,
		LoadBalancers: `{"web": {"endpoint": "web"}}`,
		Templates:     `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default", "load_balancers": ["web"]}}`,
	}
}

// TestAnInstanceIsATargetFromItsFirstReport follows an instance from its creation to its
// termination.
func TestAnInstanceIsATargetFromItsFirstReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		balancers := providertest.NewBalancers("web")
		balancers.Delay = 30 * time.Second
		o := balanced(balancers)
		o.Agents = true
		o.Groups = `{"default": {"main": {"template": "worker", "size": 1, "limits": {"min_size": 0}}}}`
		s := servertest.Start(t, o)
		f := &fleet{t: t, s: s, cut: map[string]bool{}, clients: map[string]nstancev1.AgentServiceClient{}, stops: map[string]context.CancelFunc{}}
		t.Cleanup(func() {
			for _, stop := range f.stops {
				stop()
			}
		})
		id := untilInstances(t, s, 1)[0]
		f.cut[id] = true
		f.pass(2 * time.Minute)
		assert.Empty(t, balancers.States("web"), "targets before the first report")
		delete(f.cut, id)
		f.pass(2 * time.Second)
		assert.Equal(t, map[string]provider.TargetState{id: provider.Registered}, balancers.States("web"))

		operator := s.Operator("default")
		upsert(t, operator, "main", &nstancev1.GroupConfig{Template: "worker", Size: 0})
		time.Sleep(2 * time.Second)
		assert.Equal(t, map[string]provider.TargetState{id: provider.Draining}, balancers.States("web"))
		_, err := operator.AcknowledgeDrained(t.Context(), &nstancev1.DrainAckRequest{InstanceId: id})
		require.NoError(t, err)
		time.Sleep(20 * time.Second)
		assert.Equal(t, 1, nodes(t, s), "instances before the deregistration delay is over")
		time.Sleep(20 * time.Second)
		assert.Zero(t, nodes(t, s), "instances after it")
		s.Stop()
	})
}

// TestOperatorsSetLoadBalancers: the instances of a group, and an on-demand instance alone, are
// registered with what an operator set, and deregistered when it is withdrawn. None is replaced.
func TestOperatorsSetLoadBalancers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		balancers := providertest.NewBalancers("web", "api")
		o := balanced(balancers)
		o.LoadBalancers = `{"web": {"endpoint": "web"}, "api": {"endpoint": "api"}}`
		o.Templates = `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default", "tenants": ["*"], "limits": {"load_balancers": ["web", "api"]}}}`
		s := servertest.Start(t, o)
		operator := s.Operator("default")
		upsert(t, operator, "main", &nstancev1.GroupConfig{Template: "worker", Size: 1})
		first := untilInstances(t, s, 1)[0]
		time.Sleep(time.Minute)
		assert.Empty(t, balancers.States("web"))

		_, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: "main", Declarative: true, Config: &nstancev1.GroupConfig{Template: "worker", Size: 1, LoadBalancers: []string{"web"}}})
		require.NoError(t, err)
		alone, err := operator.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{IdempotencyKey: "a", Config: &nstancev1.InstanceConfig{Group: "main", LoadBalancers: []string{"api"}}})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		assert.Equal(t, map[string]provider.TargetState{first: provider.Registered}, balancers.States("web"))
		assert.Equal(t, map[string]provider.TargetState{alone.GetInstanceId(): provider.Registered}, balancers.States("api"))

		_, err = operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: "main", Declarative: true, Config: &nstancev1.GroupConfig{Template: "worker", Size: 1}})
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		assert.Empty(t, balancers.States("web"))
		assert.Equal(t, map[string]provider.TargetState{alone.GetInstanceId(): provider.Registered}, balancers.States("api"))
		assert.Equal(t, []string{first}, untilInstances(t, s, 1))
		s.Stop()
	})
}

// terminationChecker is a provider that checks whether its instances are targets when they
// are terminated.
type terminationChecker struct {
	servertest.BalancerOptions
	world *balancedWorld
}

type checkingProvider struct {
	provider.Provider
	provider.LoadBalancers
	world *balancedWorld
}

func (o terminationChecker) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	p, err := o.BalancerOptions.NewProvider(shard, callContext)
	checked := checkingProvider{p, p.(provider.LoadBalancers), o.world}
	o.world.setProvider(p)
	return checked, err
}

func (p checkingProvider) Delete(ctx context.Context, id string) error {
	p.world.checkTermination(id)
	return p.Provider.Delete(ctx, id)
}

// balancedWorld outlives the servers of a walk.
type balancedWorld struct {
	t         *testing.T
	balancers *providertest.Balancers
	random    *rand.Rand

	mu       sync.Mutex
	provider provider.Provider
	// draining is when the last drain of an instance began.
	draining   map[string]time.Time
	failing    int
	registered int
	terminated map[string]bool
}

func (w *balancedWorld) setProvider(p provider.Provider) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.provider = p
}

// called checks each call for the targets, and makes some fail.
func (w *balancedWorld) called(operation, _ string, ids []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if operation != "register" {
			continue
		}
		w.registered++
		if vm, found := w.provider.Get(id); !found || vm.ProviderID == "" {
			w.t.Errorf("instance %s is registered before it runs", id)
		}
	}
	if w.random.IntN(100) < w.failing {
		return providertest.ErrUnavailable
	}
	return nil
}

// follow remembers when the drains of a server began, until the server ends.
func (w *balancedWorld) follow(s *servertest.Server) {
	w.t.Helper()
	stream, err := s.Operator("default").WatchInstances(w.t.Context(), &emptypb.Empty{}, grpc.WaitForReady(true))
	require.NoError(w.t, err)
	go func() {
		for {
			event, err := stream.Recv()
			if err != nil {
				return
			}
			if began := event.UnhealthyAt; began != nil {
				w.mu.Lock()
				w.draining[event.InstanceId] = began.AsTime()
				w.mu.Unlock()
			}
		}
	}()
}

// checkTermination requires that an instance is not a target, or that the drain timeout has
// passed since its drain began.
func (w *balancedWorld) checkTermination(id string) {
	states := w.balancers.States("web")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.terminated[id] = true
	if _, isTarget := states[id]; !isTarget {
		return
	}
	began, known := w.draining[id]
	if drained := time.Since(began); !known || drained < 2*time.Minute {
		w.t.Errorf("instance %s is terminated while it is a target, %v after its drain began: %t", id, drained, known)
	}
}

// TestTargetsOfServersThatAreKilled scales a group at random while its server is killed and
// calls for load balancers fail. No instance is registered before it runs, and no instance is
// terminated while it is a target, unless the deadline of its drain has passed.
func TestTargetsOfServersThatAreKilled(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(2, 6)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { walkBalanced(t, seed) })
		})
	}
}

func walkBalanced(t *testing.T, seed uint64) {
	balancers := providertest.NewBalancers("web")
	balancers.Delay = 30 * time.Second
	w := &balancedWorld{
		t: t, balancers: balancers, random: rand.New(rand.NewPCG(seed, 3)),
		draining: map[string]time.Time{}, terminated: map[string]bool{},
	}
	balancers.Called = w.called
	kubernetes := kwoktest.NewClientset()
	o := balanced(balancers)
	o.Kubernetes, o.BootDelay, o.Balancers = kubernetes, 10*time.Second, nil
	o.Providers = provider.Registry{kwoktest.Name: func(o *jsonc.Object) provider.Options {
		options := kwoktest.Providers(kubernetes)[kwoktest.Name](o)
		return terminationChecker{servertest.BalancerOptions{BalancerOptions: providertest.BalancerOptions{Options: options}, Balancers: balancers}, w}
	}}
	s := servertest.Start(t, o)
	w.follow(s)
	random := rand.New(rand.NewPCG(seed, 4))
	for range 30 {
		size := random.Int32N(6)
		upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: size})
		time.Sleep(time.Duration(random.IntN(40)) * time.Second)
		if random.IntN(2) == 0 {
			// The operator drains all Nodes at once.
			w.acknowledgeAll(s)
		}
		w.mu.Lock()
		w.failing = []int{0, 0, 30, 100}[random.IntN(4)]
		w.mu.Unlock()
		balancers.LoseResponses(random.IntN(2))
		time.Sleep(time.Duration(random.IntN(100)) * time.Second)
		if random.IntN(4) == 0 {
			s.Kill()
			o.DataDir, o.Authority = s.DataDir, s.Authority
			s = servertest.Start(t, o)
			w.follow(s)
		}
	}
	w.mu.Lock()
	w.failing = 0
	w.mu.Unlock()
	upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3})
	time.Sleep(time.Hour)
	want := map[string]provider.TargetState{}
	for _, id := range instanceIDs(list(t, s.Operator("default"))[0]) {
		want[id] = provider.Registered
	}
	assert.Len(t, want, 3)
	assert.Equal(t, want, balancers.States("web"))
	assert.Greater(t, w.registered, 10)
	assert.Greater(t, len(w.terminated), 10)
	s.Stop()
}

// acknowledgeAll acknowledges the drains of all instances that drain.
func (w *balancedWorld) acknowledgeAll(s *servertest.Server) {
	w.t.Helper()
	operator := s.Operator("default")
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	w.mu.Lock()
	var ids []string
	for id := range w.draining {
		ids = append(ids, id)
	}
	w.mu.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		// A terminated instance is not found.
		_, _ = operator.AcknowledgeDrained(ctx, &nstancev1.DrainAckRequest{InstanceId: id})
	}
}

func TestServersExportTheMetricsOfLoadBalancers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.Start(t, balanced(providertest.NewBalancers("web")))
		upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
		time.Sleep(time.Minute)
		_, text := s.Get("/metrics")
		assert.Contains(t, text, `nstance_server_load_balancer_targets{load_balancer="web",state="registered"} 2`)
		documented := metricstest.Documented(t, "../../docs/server-reference.md")
		for line := range strings.Lines(text) {
			if name, _, _ := strings.Cut(line, "{"); strings.HasPrefix(name, "nstance_server_load_balancer") {
				assert.Contains(t, documented, name)
			}
		}
		s.Stop()
	})
}
