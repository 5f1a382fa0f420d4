// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/identity"
	"nstance.dev/operator/pkg/shard/informer"
	"nstance.dev/operator/pkg/shard/pool"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// patience is how long anything may take on a busy machine.
const patience = 3 * time.Minute

// servers are real shard servers with the group "workers", and the operator's
// connections to them.
type servers struct {
	*pool.Pool

	t         testing.TB
	groups    *informer.Groups
	instances *informer.Instances
	byID      map[string]*servertest.Server
}

func startServers(t testing.TB, ids ...string) *servers {
	t.Helper()
	authority, err := pki.NewAuthority(servertest.ClusterID)
	if err != nil {
		t.Fatal(err)
	}
	s := &servers{t: t, groups: informer.NewGroups(), instances: informer.NewInstances(), byID: map[string]*servertest.Server{}}
	endpoints := map[string]shard.Endpoint{}
	for _, id := range ids {
		s.byID[id] = servertest.Start(t, servertest.Options{
			Authority: authority, Shard: id,
			Templates: `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}}`,
			Groups:    `{"default": {"workers": {"template": "worker", "size": 0}}}`,
		})
		endpoints[id] = shard.Endpoint{Operator: s.byID[id].Addr}
	}
	s.Pool = pool.New(pool.Options{Credentials: newIdentity(t, authority).TransportCredentials()})
	s.Set(endpoints)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	var running sync.WaitGroup
	running.Go(func() {
		s.Run(ctx, func(ctx context.Context, shard string, client nstancev1.OperatorServiceClient) {
			var caches sync.WaitGroup
			caches.Go(func() { s.groups.Serve(ctx, shard, client) })
			caches.Go(func() { s.instances.Serve(ctx, shard, client) })
			caches.Wait()
		})
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	s.until("the shards are connected", func() bool {
		for _, id := range ids {
			if up, _ := s.groups.Reachable(id); !up {
				return false
			}
		}
		return true
	})
	return s
}

func newIdentity(t testing.TB, authority *pki.Authority) *identity.Identity {
	t.Helper()
	certPEM, keyPEM, err := authority.IssueClient(pki.Client{ID: "operator", Tenant: "default", Role: pki.RoleOperator}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	id := &identity.Identity{}
	if err := id.Set(certPEM, keyPEM, authority.CertificatePEM()); err != nil {
		t.Fatal(err)
	}
	return id
}

func (s *servers) until(what string, condition func() bool) {
	s.t.Helper()
	err := wait.PollUntilContextTimeout(s.t.Context(), 5*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		s.t.Fatalf("still not: %s", what)
	}
}

// stored is the number of instances that a server has on record.
func (s *servers) stored() int {
	s.t.Helper()
	stored := 0
	for id, server := range s.byID {
		records, err := server.Storage.List(s.t.Context(), storage.InstancePrefix(id))
		if err != nil {
			s.t.Fatal(err)
		}
		stored += len(records)
	}
	return stored
}

// realHarness is a harness whose controllers work with real servers.
func realHarness(t testing.TB, s *servers, machines ...*v1beta1.NstanceMachine) *harness {
	t.Helper()
	h := newHarness(t, newShards(), machines...)
	h.groups = s.groups
	// Nobody reads the events.
	h.recorder = &events.FakeRecorder{}
	return h
}

// Replies are lost, processes die, caches are behind and writes fail around
// CreateInstance, a thousand times. Each machine has one instance, and the servers
// have no other.
func TestOneInstanceOnRealServersWhateverGoesWrong(t *testing.T) {
	const faults = 1000
	s := startServers(t, "a", "b")
	h := realHarness(t, s)
	random := rand.New(rand.NewPCG(1, 2))
	var seen [lost + 1]int
	crashes, total, calm := 0, 0, false
	next := func() fault {
		if calm || random.IntN(10) < 4 {
			return fine
		}
		failure := conflicting + fault(random.IntN(int(lost)))
		seen[failure]++
		total++
		return failure
	}
	h.sabotage(next)

	var names []string
	for total < faults {
		machine := newMachine(fmt.Sprintf("m-%d", len(names)))
		machine.Spec.InstanceType = ""
		names = append(names, machine.Name)
		if err := h.Tracker().Add(machine); err != nil {
			t.Fatal(err)
		}
		h.put(h.owners, newOwner(machine.Name))
		h.restart(unreliable{s, next})
		h.Show(h.informers)
		for h.machine(machine.Name).Status.InstanceID == "" {
			if random.IntN(3) > 0 {
				h.Show(h.informers)
			}
			_, err := h.controller.sync(h.ctx, cache.NewObjectName(namespace, machine.Name))
			if err != nil && random.IntN(2) == 0 {
				h.restart(unreliable{s, next})
				crashes++
			}
		}
	}
	t.Logf("%d machines, %d faults (%d conflicts, %d that broke, %d lost replies), %d crashes",
		len(names), total, seen[conflicting], seen[broken], seen[lost], crashes)
	if got := s.stored(); got != len(names) {
		t.Errorf("the servers have %d instances for %d machines", got, len(names))
	}
	ids := map[string]bool{}
	for _, name := range names {
		status := h.machine(name).Status
		if _, err := s.Instance(t.Context(), status.Shard, status.InstanceID); err != nil {
			t.Errorf("instance of machine %s: %v", name, err)
		}
		ids[status.InstanceID] = true
	}
	if len(ids) != len(names) {
		t.Errorf("%d machines share %d instances", len(names), len(ids))
	}

	// And none is left when the machines go.
	for _, name := range names {
		if err := h.controller.machines.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	calm = true
	s.until("all machines are gone", func() bool {
		left := false
		h.Show(h.informers)
		for _, name := range names {
			if h.machine(name) == nil {
				continue
			}
			left = true
			if _, err := h.controller.sync(h.ctx, cache.NewObjectName(namespace, name)); err != nil {
				t.Error(err)
			}
		}
		h.after(time.Minute)
		return !left
	})
	if got := s.stored(); got != 0 {
		t.Errorf("the servers have %d instances left", got)
	}
}

// The queue, the informer and the clock are real too.
func TestTheLifeOfMachinesOnARealServer(t *testing.T) {
	s := startServers(t, "a")
	h := realHarness(t, s)
	for i := range 3 {
		machine := newMachine(fmt.Sprintf("m-%d", i))
		machine.Spec.InstanceType = ""
		if err := h.Tracker().Add(machine); err != nil {
			t.Fatal(err)
		}
		h.put(h.owners, newOwner(machine.Name))
	}
	h.realClock = clock.RealClock{}
	h.restart(s)
	ctx, cancel := context.WithCancel(h.ctx)
	var running sync.WaitGroup
	running.Go(func() { h.informers.NstanceMachines().Informer().RunWithContext(ctx) })
	running.Go(func() { h.controller.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})

	s.until("all run", func() bool {
		for i := range 3 {
			if told(h.machine(fmt.Sprintf("m-%d", i)), v1beta1.ConditionReady) != "True Ready: " {
				return false
			}
		}
		return true
	})
	nodes, err := s.byID["a"].Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 3 {
		t.Fatalf("there are %d Nodes, error %v", len(nodes.Items), err)
	}
	for i := range 3 {
		if err := h.controller.machines.Delete(t.Context(), fmt.Sprintf("m-%d", i), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.until("all are gone", func() bool {
		return h.machine("m-0") == nil && h.machine("m-1") == nil && h.machine("m-2") == nil
	})
	if nodes, err = s.byID["a"].Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil || len(nodes.Items) != 0 || s.stored() != 0 {
		t.Errorf("there are %d Nodes and %d instances, error %v", len(nodes.Items), s.stored(), err)
	}
}
