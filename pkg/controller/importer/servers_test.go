// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/controller/controllertest"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/identity"
	"nstance.dev/operator/pkg/shard/informer"
	"nstance.dev/operator/pkg/shard/pool"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// patience is how long anything may take on a busy machine.
const patience = time.Minute

// Real servers, their connections, and informers that run: from a shard that is
// down at the start to a pool that is deleted.
func TestGroupsOfServersGetPools(t *testing.T) {
	authority, err := pki.NewAuthority(servertest.ClusterID)
	if err != nil {
		t.Fatal(err)
	}
	options := func(id string, size int) servertest.Options {
		return servertest.Options{
			Authority: authority, Shard: id,
			Groups: fmt.Sprintf(`{"default": {"main": {"template": "worker", "size": %d}}}`, size),
		}
	}
	a, b := servertest.Start(t, options("a", 3)), servertest.Start(t, options("b", 2))
	a.Kill()

	w := watchPools(t, authority, map[string]string{"a": a.Addr, "b": b.Addr})
	w.until(t, "shard a is known to be down and shard b is not", func() bool {
		_, lost := w.groups.Reachable("a")
		up, _ := w.groups.Reachable("b")
		return up && shard.IsUnreachable(lost)
	})
	back := options("a", 3)
	back.Addr = a.Addr
	a = servertest.Start(t, back)
	// Had it been made from one shard, it would be of that shard.
	w.expect(t, "create main on [a b]")

	if _, err := a.Operator("default").UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: "extra", Config: &nstancev1.GroupConfig{Template: "worker", Size: 1},
	}); err != nil {
		t.Fatal(err)
	}
	w.expect(t, "create extra on [a] of worker")

	// The servers' configuration still has the group.
	noFinalizer := []byte(`[{"op": "remove", "path": "/metadata/finalizers"}]`)
	if err := w.pools().Delete(t.Context(), "main", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pools().Patch(t.Context(), "main", types.JSONPatchType, noFinalizer, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.expect(t, "main is gone")
	w.expect(t, "create main on [a b]")
}

// poolWatch is an importer that works, and what it brings about.
type poolWatch struct {
	api    *controllertest.API
	groups *informer.Groups
	// told gets each pool that came or went.
	told chan string

	mu sync.Mutex
	// changed is closed and replaced whenever a shard's state has changed.
	changed chan struct{}
}

// watchPools runs an importer with the shards at these addresses.
func watchPools(t *testing.T, authority *pki.Authority, addresses map[string]string) *poolWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	w := &poolWatch{
		api: controllertest.NewAPI(t), groups: informer.NewGroups(),
		told: make(chan string, 10), changed: make(chan struct{}),
	}
	connections := pool.New(pool.Options{Credentials: newIdentity(t, authority).TransportCredentials()})
	informers, client := w.api.Informers(), controllertest.NewCAPI(t).Client
	pools := informers.NstanceMachinePools()
	c, _, err := New(namespace, clusterName, w.api.InfrastructureV1beta1(), pools, informers.NstanceShardGroups(),
		capi.NewMachinePoolInformer(client, namespace, 0), capi.NewClusterInformer(client, namespace, 0),
		connections, w.groups, events.NewFakeRecorder(10))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pools.Informer().AddEventHandler(controller.OnChange(w.tell)); err != nil {
		t.Fatal(err)
	}
	w.groups.AddHandler(informer.Handler{OnGroup: c.GroupChanged, OnShard: func(id string) {
		c.ShardChanged(id)
		w.signal()
	}})
	connections.AddHandler(c.ShardChanged)
	endpoints := map[string]shard.Endpoint{}
	for id, address := range addresses {
		endpoints[id] = shard.Endpoint{Operator: address}
	}
	connections.Set(endpoints)

	var running sync.WaitGroup
	for _, run := range []func(){
		func() { pools.Informer().RunWithContext(ctx) },
		func() { informers.NstanceShardGroups().Informer().RunWithContext(ctx) },
		func() { connections.Run(ctx, w.groups.Serve) },
		func() { c.Run(ctx) },
	} {
		running.Go(run)
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return w
}

func newIdentity(t *testing.T, authority *pki.Authority) *identity.Identity {
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

func (w *poolWatch) pools() clientset.NstanceMachinePoolInterface {
	return w.api.InfrastructureV1beta1().NstanceMachinePools(namespace)
}

func (w *poolWatch) tell(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case before == nil:
		w.told <- told(decision{create: &after.Spec})
	case after == nil:
		w.told <- before.Name + " is gone"
	}
}

// expect waits for the next pool that comes or goes.
func (w *poolWatch) expect(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-w.told:
		if got != want {
			t.Fatalf("told %q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Fatalf("after %s still not: %s", patience, want)
	}
}

func (w *poolWatch) signal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// until waits for a condition on the state of shards.
func (w *poolWatch) until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		w.mu.Lock()
		next := w.changed
		w.mu.Unlock()
		if condition() {
			return
		}
		select {
		case <-next:
		case <-deadline:
			t.Fatalf("after %s still not: %s", patience, what)
		}
	}
}
