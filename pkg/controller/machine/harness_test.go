// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller/controllertest"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
)

var (
	machines    = v1beta1.SchemeGroupVersion.WithResource("nstancemachines")
	shardGroups = v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups")
)

// harness is a controller whose caches show what the test wants.
type harness struct {
	*controllertest.API

	t          testing.TB
	ctx        context.Context
	controller *Controller
	informers  infrastructure.Interface
	capi       *controllertest.CAPI
	owners     *capi.Informer[*clusterv1.Machine]
	// machinePools are those that the cache shows.
	machinePools *capi.Informer[*clusterv1.MachinePool]
	clusters     *capi.Informer[*clusterv1.Cluster]
	nodes        cache.SharedIndexInformer
	shards       *shards
	// groups are what is known of the shards' groups: those of shards, or others.
	groups Groups
	// notices are the announcements of shards, or others.
	notices Notices
	clock   *clocktesting.FakePassiveClock
	// realClock takes the place of clock when it is set.
	realClock clock.PassiveClock
	recorder  *events.FakeRecorder
}

// newHarness makes a controller with these shards that sees machines and the
// Machine of each in its caches.
func newHarness(t testing.TB, shards *shards, all ...*v1beta1.NstanceMachine) *harness {
	t.Helper()
	objects := make([]runtime.Object, len(all))
	for i, machine := range all {
		objects[i] = machine
	}
	h := &harness{
		API:      controllertest.NewAPI(t, objects...),
		t:        t,
		ctx:      klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())),
		capi:     controllertest.NewCAPI(t),
		shards:   shards,
		clock:    clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		recorder: events.NewFakeRecorder(10),
	}
	h.owners = capi.NewMachineInformer(h.capi.Client, namespace, 0)
	h.machinePools = capi.NewMachinePoolInformer(h.capi.Client, namespace, 0)
	h.clusters = capi.NewClusterInformer(h.capi.Client, namespace, 0)
	h.nodes = kubeinformers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Nodes().Informer()
	h.put(h.clusters, newCluster())
	for _, machine := range all {
		h.put(h.owners, newOwner(machine.Name))
	}
	h.groups, h.notices = shards, notices{shards}
	h.informers = h.Informers()
	h.controller = h.newController(h.shards)
	h.Show(h.informers)
	return h
}

// newController is one that remembers nothing.
func (h *harness) newController(shards Shards) *Controller {
	h.t.Helper()
	c, _, err := New(namespace, clusterName, h.InfrastructureV1beta1(), h.capi.Client, h.informers.NstanceMachines(),
		h.owners, h.informers.NstanceMachinePools(), h.informers.NstanceShardGroups(), h.machinePools, h.clusters, h.nodes, shards, h.groups, h.notices, h.shards, h.recorder, cmp.Or[clock.PassiveClock](h.realClock, h.clock))
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// restart has a new process take over, whose cache is as old as the former's.
func (h *harness) restart(shards Shards) {
	h.t.Helper()
	store := h.informers.NstanceMachines().Informer().GetStore()
	h.informers = h.Informers()
	if err := h.informers.NstanceMachines().Informer().GetIndexer().Replace(store.List(), store.LastStoreSyncResourceVersion()); err != nil {
		h.t.Fatal(err)
	}
	h.controller = h.newController(shards)
}

// put has a cache show an object.
func (h *harness) put(informer cache.SharedIndexInformer, object any) {
	h.t.Helper()
	if err := informer.GetIndexer().Update(object); err != nil {
		h.t.Fatal(err)
	}
}

// live has the API server of Cluster API answer for an object.
func (h *harness) live(object runtime.Object) {
	h.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		h.t.Fatal(err)
	}
	h.capi.Created = append(h.capi.Created, &unstructured.Unstructured{Object: content})
}

// addPool adds the pool with these sizes on shards a and b, and a MachinePool with
// replicas.
func (h *harness) addPool(replicas, onA, onB int32) {
	h.t.Helper()
	for _, object := range []runtime.Object{newPool(), newShardGroup("a", onA), newShardGroup("b", onB)} {
		if err := h.Tracker().Add(object); err != nil {
			h.t.Fatal(err)
		}
	}
	h.scale(replicas)
	h.put(h.machinePools, newMachinePool(replicas))
}

// scale changes the replicas of the MachinePool, of which the cache shows nothing.
func (h *harness) scale(replicas int32) {
	h.t.Helper()
	h.capi.Created = slices.DeleteFunc(h.capi.Created, func(object *unstructured.Unstructured) bool {
		return object.GetKind() == "MachinePool"
	})
	h.live(newMachinePool(replicas))
}

// size changes what the pool wants on shard a.
func (h *harness) size(size int32, removeFirst ...string) {
	h.t.Helper()
	if err := h.Tracker().Update(shardGroups, newShardGroup("a", size, removeFirst...), namespace); err != nil {
		h.t.Fatal(err)
	}
}

// hideOwner takes the Machine of the machine "m" out of the cache.
func (h *harness) hideOwner() {
	h.t.Helper()
	if err := h.owners.GetIndexer().Delete(newOwner("m")); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) addNode(node *corev1.Node) { h.put(h.nodes, node) }

// after lets time go by.
func (h *harness) after(d time.Duration) { h.clock.SetTime(h.clock.Now().Add(d)) }

// sync syncs the machine "m" once, with an up to date cache, and returns the calls
// to shards and the writes to the API server.
func (h *harness) sync() (did []string, requeue time.Duration, err error) {
	h.t.Helper()
	h.Show(h.informers)
	return h.syncStale()
}

// syncStale is sync with the cache as it was.
func (h *harness) syncStale() (did []string, requeue time.Duration, err error) {
	h.t.Helper()
	requeue, err = h.controller.sync(h.ctx, cache.NewObjectName(namespace, "m"))
	did = slices.Concat(h.shards.told(), h.Writes(), h.capi.Changed)
	h.capi.Changed = nil
	return did, requeue, err
}

// expect syncs once, without an error, and compares what was done.
func (h *harness) expect(want ...string) time.Duration {
	h.t.Helper()
	did, requeue, err := h.sync()
	if err != nil {
		h.t.Fatal(err)
	}
	if !slices.Equal(did, want) {
		h.t.Errorf("did %q, want %q", did, want)
	}
	return requeue
}

// expectReady compares the condition Ready.
func (h *harness) expectReady(want string) {
	h.t.Helper()
	h.expectCondition(v1beta1.ConditionReady, want)
}

func (h *harness) expectCondition(kind, want string) {
	h.t.Helper()
	if got := told(h.machine("m"), kind); got != want {
		h.t.Errorf("%s is %q, want %q", kind, got, want)
	}
}

// change changes the machine "m" on the API server.
func (h *harness) change(change func(*v1beta1.NstanceMachine)) {
	h.t.Helper()
	machine := h.machine("m")
	change(machine)
	if err := h.Tracker().Update(machines, machine, namespace); err != nil {
		h.t.Fatal(err)
	}
}

// machine is a machine on the API server, nil when it is gone.
func (h *harness) machine(name string) *v1beta1.NstanceMachine {
	h.t.Helper()
	object, err := h.Tracker().Get(machines, namespace, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return object.(*v1beta1.NstanceMachine)
}

// events are what was recorded since the last call.
func (h *harness) events() []string {
	var recorded []string
	for {
		select {
		case event := <-h.recorder.Events:
			recorded = append(recorded, event)
		default:
			return recorded
		}
	}
}

// The writes that a sync may do.
const (
	applyMachineM = "apply nstancemachines m"
	applyStatusM  = "apply nstancemachines/status m"
	patchM        = "patch nstancemachines m"
	deleteM       = "delete nstancemachines m"
	createOnA     = "create large of workers on a"
	askA          = "ask for i-1 on a"
	deleteOnA     = "delete i-1 on a"
)
