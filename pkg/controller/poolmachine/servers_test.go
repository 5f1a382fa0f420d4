// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

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
)

// patience is how long anything may take on a busy machine.
const patience = 3 * time.Minute

// Real servers, their connections, and informers that run.
func TestInstancesOfServersGetMembers(t *testing.T) {
	w := startWorld(t, "a", "b", "c")
	w.resize("a", 2)
	w.resize("b", 1)
	w.resize("c", 1)
	w.until("each instance has its member", func() bool { return w.sameAsServers(4) })
	before := w.list()

	w.resize("b", 3)
	w.until("each new instance has one too", func() bool { return w.sameAsServers(6) })
	for _, member := range before {
		if after, err := w.members.Get(t.Context(), member.Name, metav1.GetOptions{}); err != nil || after.UID != member.UID {
			t.Errorf("member %s was made anew, error %v", member.Name, err)
		}
	}

	// The instance ends on its server; its member waits for others.
	victim := w.instances("b")[1]
	w.resize("b", 2, victim)
	w.until("the chosen instance is gone", func() bool { return !slices.Contains(w.instances("b"), victim) })
	members := w.list()
	if !slices.ContainsFunc(members, func(member v1beta1.NstanceMachine) bool { return member.Name == victim }) || len(members) != 6 {
		t.Errorf("there are %d members", len(members))
	}
	if len(w.recorder.Events) > 0 {
		t.Errorf("recorded %q", <-w.recorder.Events)
	}
}

// world is a controller that works with real servers, on each of which there is the
// group "workers".
type world struct {
	t        *testing.T
	shards   []string
	pool     *pool.Pool
	groups   *informer.Groups
	members  clientset.NstanceMachineInterface
	recorder *events.FakeRecorder
}

func startWorld(t *testing.T, ids ...string) *world {
	t.Helper()
	authority, err := pki.NewAuthority(servertest.ClusterID)
	if err != nil {
		t.Fatal(err)
	}
	owner := newPool()
	api := controllertest.NewAPI(t, owner)
	endpoints := map[string]shard.Endpoint{}
	for _, id := range ids {
		server := servertest.Start(t, servertest.Options{
			Authority: authority, Shard: id, Groups: `{"default": {"workers": {"template": "worker", "size": 0}}}`,
		})
		endpoints[id] = shard.Endpoint{Operator: server.Addr}
		owner.Spec.Shards = append(owner.Spec.Shards, v1beta1.Identifier(id))
	}
	if err := api.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"), owner, namespace); err != nil {
		t.Fatal(err)
	}
	for _, id := range owner.Spec.Shards {
		if err := api.Tracker().Add(newShardGroup(owner, id)); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{
		t: t, shards: ids, groups: informer.NewGroups(),
		pool:     pool.New(pool.Options{Credentials: newIdentity(t, authority).TransportCredentials()}),
		members:  api.InfrastructureV1beta1().NstanceMachines(namespace),
		recorder: events.NewFakeRecorder(10),
	}
	informers, client := api.Informers(), controllertest.NewCAPI(t).Client
	machinePools := capi.NewMachinePoolInformer(client, namespace, 0)
	c, _, err := New(namespace, clusterName, api.InfrastructureV1beta1(), client,
		informers.NstanceMachinePools(), informers.NstanceShardGroups(), informers.NstanceMachines(),
		capi.NewMachineInformer(client, namespace, 0), machinePools, capi.NewClusterInformer(client, namespace, 0),
		w.groups, w.recorder, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	if err := machinePools.GetIndexer().Add(newMachinePool()); err != nil {
		t.Fatal(err)
	}
	w.groups.AddHandler(informer.Handler{OnGroup: c.GroupChanged, OnShard: c.ShardChanged})
	w.pool.Set(endpoints)

	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(t, ktesting.NewConfig())))
	var running sync.WaitGroup
	for _, run := range []func(){
		func() { informers.NstanceMachinePools().Informer().RunWithContext(ctx) },
		func() { informers.NstanceShardGroups().Informer().RunWithContext(ctx) },
		func() { informers.NstanceMachines().Informer().RunWithContext(ctx) },
		func() { w.pool.Run(ctx, w.groups.Serve) },
		func() { c.Run(ctx) },
	} {
		running.Go(run)
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	w.until("the shards are connected", func() bool {
		return w.groups.Synced(ids)
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

// resize gives the group on a shard another size.
func (w *world) resize(id string, size int32, first ...string) {
	w.t.Helper()
	if _, err := w.pool.UpsertGroup(w.t.Context(), id, "workers", shard.GroupConfig{Size: size, RemoveFirst: first}); err != nil {
		w.t.Fatal(err)
	}
}

// instances are the ids of those that a shard lists, sorted.
func (w *world) instances(id string) []string {
	group, _ := w.groups.Get(id, "workers")
	var ids []string
	for _, instance := range group.Instances {
		ids = append(ids, instance.ID)
	}
	slices.Sort(ids)
	return ids
}

// list returns the members on the API server.
func (w *world) list() []v1beta1.NstanceMachine {
	w.t.Helper()
	list, err := w.members.List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// sameAsServers tells whether there are that many members, and each is of an
// instance of the shard that it names.
func (w *world) sameAsServers(want int) bool {
	w.t.Helper()
	var listed, members []string
	for _, id := range w.shards {
		for _, instance := range w.instances(id) {
			listed = append(listed, id+"/"+instance)
		}
	}
	for _, member := range w.list() {
		if member.Labels[v1beta1.LabelShard] != string(member.Spec.Shard) || member.Labels[v1beta1.LabelGroup] != "workers" ||
			member.Labels[clusterv1.MachinePoolNameLabel] != "workers" || member.Labels[clusterv1.ClusterNameLabel] != clusterName ||
			controller.PoolOf(&member) == nil || controller.PoolOf(&member).UID != poolUID || metav1.GetControllerOf(&member) != nil {
			w.t.Errorf("member %+v", member.ObjectMeta)
		}
		members = append(members, strings.Join([]string{string(member.Spec.Shard), member.Name}, "/"))
	}
	slices.Sort(listed)
	slices.Sort(members)
	return len(members) == want && slices.Equal(listed, members)
}

func (w *world) until(what string, condition func() bool) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(w.t.Context(), 5*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		w.t.Fatalf("still not: %s", what)
	}
}
