// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// harness is a controller with an API server and stale caches.
type harness struct {
	*controllertest.Harness
	controller *Controller

	// version is the resource version of the API server.
	version int
	// machines are the Machines on the API server, by name.
	machines map[string]*clusterv1.Machine
	// rejected has the errors of creating NstanceMachines, by name.
	rejected map[string]error
	crash    crash
	// unreadable makes every read of a Machine fail.
	unreadable bool
}

// newHarness returns a controller of the pool "workers" and its MachinePool, with
// objects of our kinds.
func newHarness(t testing.TB, groups byShard, objects ...runtime.Object) *harness {
	t.Helper()
	h := &harness{
		Harness: controllertest.NewHarness(t, shardtest.New(), objects...),
		version: 1000, machines: map[string]*clusterv1.Machine{}, rejected: map[string]error{},
	}
	for id, group := range groups {
		h.setGroup(id, group)
	}
	h.FakeClock.SetTime(start)
	h.PrependReactor("create", "nstancemachines", func(action clienttesting.Action) (bool, runtime.Object, error) {
		created := action.(clienttesting.CreateActionImpl).Object.(*v1beta1.NstanceMachine).DeepCopy()
		if err := h.rejected[created.Name]; err != nil {
			return true, nil, err
		}
		lost, err := h.crash.write()
		if err != nil && !lost {
			return true, nil, err
		}
		h.version++
		created.UID, created.ResourceVersion = types.UID("uid-"+created.Name), strconv.Itoa(h.version)
		return true, created, errors.Join(h.Tracker().Create(action.GetResource(), created, controllertest.Namespace), err)
	})
	h.PrependReactor("delete", "nstancemachines", func(clienttesting.Action) (bool, runtime.Object, error) {
		lost, err := h.crash.write()
		return err != nil && !lost, nil, err
	})
	client, err := capi.NewForConfig(&rest.Config{Host: "http://capi.test", QPS: -1, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodDelete {
			if lost, err := h.crash.write(); err != nil && !lost {
				return nil, err
			}
		}
		if r.Method == http.MethodGet && h.unreadable {
			return nil, errors.New("out of order")
		}
		return h.CAPI.RoundTrip(r)
	})})
	require.NoError(h.T, err)
	h.Dependencies.CAPI = client
	h.restart()
	h.Put(h.Informers.MachinePools, newMachinePool())
	return h
}

// setGroup sets the group that a shard reports. The shard is then configured and synced.
func (h *harness) setGroup(id string, group shard.Group) {
	if h.Fake.ByID[id] == nil {
		h.Fake.ByID[id] = shardtest.NewShard()
	}
	h.Fake.SetGroup(id, group)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// restart replaces the controller. The new controller has only the state of the API server.
func (h *harness) restart() {
	h.T.Helper()
	before := h.Informers
	h.Informers = controllers.Informers{
		Nstance:      h.NewInformers(),
		Clusters:     capi.NewClusterInformer(h.Dependencies.CAPI, controllertest.Namespace, 0),
		MachinePools: capi.NewMachinePoolInformer(h.Dependencies.CAPI, controllertest.Namespace, 0),
		Machines:     capi.NewMachineInformer(h.Dependencies.CAPI, controllertest.Namespace, 0),
	}
	require.NoError(h.T, h.Informers.MachinePools.GetIndexer().Replace(before.MachinePools.GetIndexer().List(), "1"))
	require.NoError(h.T, h.Informers.Clusters.GetIndexer().Replace(before.Clusters.GetIndexer().List(), "1"))
	c, err := New(h.Dependencies)
	require.NoError(h.T, err)
	assert.Len(h.T, c.HasSynced(), 6, "one handler per informer")
	h.controller = c
	h.show()
}

// show makes the caches equal to the API server, and calls the handler of NstanceMachines.
func (h *harness) show() {
	h.T.Helper()
	cached := h.Informers.Nstance.NstanceMachines().Informer().GetIndexer()
	before := cached.List()
	h.Show()
	require.NoError(h.T, cached.Replace(cached.List(), strconv.Itoa(h.version)))
	for _, object := range cached.List() {
		after := object.(*v1beta1.NstanceMachine)
		at := slices.IndexFunc(before, func(was any) bool { return was.(*v1beta1.NstanceMachine).UID == after.UID })
		if at < 0 {
			h.controller.nstanceMachineChanged(nil, after)
			continue
		}
		h.controller.nstanceMachineChanged(before[at].(*v1beta1.NstanceMachine), after)
		before = slices.Delete(before, at, at+1)
	}
	for _, removed := range before {
		h.controller.nstanceMachineChanged(removed.(*v1beta1.NstanceMachine), nil)
	}
	machines := make([]any, 0, len(h.machines))
	for _, machine := range h.machines {
		machines = append(machines, machine)
	}
	require.NoError(h.T, h.Informers.Machines.GetIndexer().Replace(machines, strconv.Itoa(h.version)))
}

// addMachines adds Machines to the API server.
func (h *harness) addMachines(machines ...*clusterv1.Machine) {
	h.T.Helper()
	for _, machine := range machines {
		h.machines[machine.Name] = machine
		h.CAPI.Has(h.T, machine)
	}
}

// update changes an object of our kinds, as another client does.
func (h *harness) update(resource string, object runtime.Object) {
	h.T.Helper()
	require.NoError(h.T, h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource(resource), object, controllertest.Namespace))
}

// remove removes an NstanceMachine and its Machine from the API server.
func (h *harness) remove(id string) {
	h.T.Helper()
	require.NoError(h.T, h.Tracker().Delete(v1beta1.SchemeGroupVersion.WithResource("nstancemachines"), controllertest.Namespace, id))
	delete(h.machines, id)
}

// sync syncs the pool once and returns the writes, sorted. Machines that it deletes have a
// deletion timestamp afterwards.
func (h *harness) sync() (writes []string, requeue time.Duration, err error) {
	h.T.Helper()
	requeue, err = h.controller.sync(h.Ctx, controllertest.Key("workers"))
	for _, changed := range h.CAPI.Changed {
		called, body, _ := strings.Cut(changed, " {")
		name, isMachine := strings.CutPrefix(called, "DELETE machines/")
		machine := h.machines[name]
		if !isMachine || machine == nil || !strings.Contains(body, `"preconditions":{"uid":"`+string(machine.UID)+`"}`) {
			h.T.Errorf("requested %q", changed)
			continue
		}
		writes = append(writes, "delete machines "+name)
		if h.CAPI.Refused == nil {
			h.machines[name] = controllertest.Deleting(machine.DeepCopy())
		}
	}
	h.CAPI.Changed = nil
	writes = append(writes, h.Writes()...)
	slices.Sort(writes)
	return writes, requeue, err
}

// expect updates the caches, syncs the pool once, which must succeed, and compares the writes.
func (h *harness) expect(want ...string) {
	h.T.Helper()
	h.show()
	got, _, err := h.sync()
	require.NoError(h.T, err)
	assert.Equal(h.T, want, got, "wrote")
}

// nstanceMachine returns an NstanceMachine from the API server, nil if it does not exist.
func (h *harness) nstanceMachine(id string) *v1beta1.NstanceMachine {
	return controllertest.Get[*v1beta1.NstanceMachine](h.API, id)
}

const (
	poolUID = "uid-workers"
)

// start is the time at which tests start.
var start = time.Unix(1_700_000_000, 0)

// newPool returns the pool "workers" of the group "workers" on these shards. Its instances
// have Machines.
func newPool(shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "workers", UID: poolUID, ResourceVersion: "1"},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: shards},
		Status:     v1beta1.NstanceMachinePoolStatus{InfrastructureMachineKind: "NstanceMachine"},
	}
}

// newShardGroup returns the shard group of a pool on a shard. selected are the ids of
// instances that scale-downs have selected.
func newShardGroup(pool *v1beta1.NstanceMachinePool, id v1beta1.Identifier, selected ...string) *v1beta1.NstanceShardGroup {
	group := controllertest.NewShardGroup(pool, id)
	group.Spec.RemoveFirst = selected
	return group
}

// newMachinePool returns the MachinePool of the pool "workers".
func newMachinePool() *clusterv1.MachinePool {
	return controllertest.NewMachinePool("workers", "workers")
}

// stored returns the NstanceMachine of an instance on shard a, as the API server stores it.
func stored(id string) *v1beta1.NstanceMachine {
	nstanceMachine := newNstanceMachine(newPool("a"), newMachinePool(), instance{id, "a"})
	nstanceMachine.UID = types.UID("uid-" + id)
	return nstanceMachine
}

// foreign returns an NstanceMachine i-1 without a pool.
func foreign() *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "i-1", UID: "uid-foreign"}}
}

// newMachine returns the Machine that Cluster API creates for an NstanceMachine.
func newMachine(name string) *clusterv1.Machine {
	machine := controllertest.NewMachine(name)
	machine.Labels = map[string]string{clusterv1.ClusterNameLabel: controllertest.ClusterName, clusterv1.MachinePoolNameLabel: capi.LabelValue("workers")}
	return machine
}

// byShard has the groups "workers" that shards report, by shard. These shards are configured
// and synced.
type byShard = map[string]shard.Group

// running returns the group "workers" with running instances.
func running(ids ...string) shard.Group {
	group := shard.Group{Key: "workers", ListsInstances: true}
	for _, id := range ids {
		group.Instances = append(group.Instances, shard.Instance{ID: id, State: shard.InstanceRunning})
	}
	return group
}

// inState returns the group "workers" with an instance in a state.
func inState(id string, state shard.InstanceState) shard.Group {
	return shard.Group{Key: "workers", ListsInstances: true, Instances: []shard.Instance{{ID: id, State: state}}}
}
