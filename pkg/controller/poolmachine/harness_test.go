// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller/controllertest"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
)

// harness is a controller, an API server, and caches that show what a test wants.
type harness struct {
	*controllertest.API

	t        testing.TB
	groups   Groups
	capi     *controllertest.CAPI
	clock    *clocktesting.FakePassiveClock
	recorder *events.FakeRecorder
	// version is the resource version of the API server.
	version int
	// machines are those that the API server has, by name.
	machines map[string]*clusterv1.Machine
	// created are the names of the members that were asked for since the last sync,
	// and refused the errors that answer that.
	created []string
	refused map[string]error
	crash   crash
	// unreadable has every look for a Machine fail.
	unreadable bool

	capiClient *capi.Client

	controller       *Controller
	informers        infrastructure.Interface
	machineCache     *capi.Informer[*clusterv1.Machine]
	machinePoolCache *capi.Informer[*clusterv1.MachinePool]
	clusterCache     *capi.Informer[*clusterv1.Cluster]
}

// newHarness makes a controller of the pool "workers" and its MachinePool, with
// these of our objects besides.
func newHarness(t testing.TB, groups Groups, objects ...runtime.Object) *harness {
	t.Helper()
	h := &harness{
		API: controllertest.NewAPI(t, objects...),
		t:   t, groups: groups, capi: controllertest.NewCAPI(t), clock: clocktesting.NewFakePassiveClock(start),
		recorder: events.NewFakeRecorder(1000), version: 1000, machines: map[string]*clusterv1.Machine{}, refused: map[string]error{},
	}
	h.PrependReactor("create", "nstancemachines", func(action clienttesting.Action) (bool, runtime.Object, error) {
		created := action.(clienttesting.CreateActionImpl).Object.(*v1beta1.NstanceMachine).DeepCopy()
		h.created = append(h.created, created.Name)
		if err := h.refused[created.Name]; err != nil {
			return true, nil, err
		}
		lost, err := h.crash.write()
		if err != nil && !lost {
			return true, nil, err
		}
		h.version++
		created.UID, created.ResourceVersion = types.UID("uid-"+created.Name), strconv.Itoa(h.version)
		return true, created, errors.Join(h.Tracker().Create(action.GetResource(), created, namespace), err)
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
		return h.capi.RoundTrip(r)
	})})
	h.noError(err)
	h.capiClient = client
	h.restart()
	h.put(h.machinePoolCache, newMachinePool())
	return h
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// restart makes the controller anew: of what it knew only the API server is left.
func (h *harness) restart() {
	h.t.Helper()
	h.informers = h.Informers()
	h.machineCache = capi.NewMachineInformer(h.capiClient, namespace, 0)
	machinePools := capi.NewMachinePoolInformer(h.capiClient, namespace, 0)
	clusters := capi.NewClusterInformer(h.capiClient, namespace, 0)
	c, registrations, err := New(namespace, clusterName, h.InfrastructureV1beta1(), h.capiClient,
		h.informers.NstanceMachinePools(), h.informers.NstanceShardGroups(), h.informers.NstanceMachines(),
		h.machineCache, machinePools, clusters, h.groups, h.recorder, h.clock)
	h.noError(err)
	if len(registrations) != 6 {
		h.t.Errorf("%d registrations to wait for, want one per informer", len(registrations))
	}
	if h.controller != nil {
		h.noError(machinePools.GetIndexer().Replace(h.machinePoolCache.GetIndexer().List(), "1"))
		h.noError(clusters.GetIndexer().Replace(h.clusterCache.GetIndexer().List(), "1"))
	}
	h.controller, h.machinePoolCache, h.clusterCache = c, machinePools, clusters
	h.show()
}

// show makes the caches equal to what the API server has, and has the handler of
// members called.
func (h *harness) show() {
	h.t.Helper()
	members := h.informers.NstanceMachines().Informer().GetIndexer()
	before := members.List()
	h.Show(h.informers)
	h.noError(members.Replace(members.List(), strconv.Itoa(h.version)))
	for _, object := range members.List() {
		member := object.(*v1beta1.NstanceMachine)
		at := slices.IndexFunc(before, func(was any) bool { return was.(*v1beta1.NstanceMachine).UID == member.UID })
		if at < 0 {
			h.controller.memberChanged(nil, member)
			continue
		}
		h.controller.memberChanged(before[at].(*v1beta1.NstanceMachine), member)
		before = slices.Delete(before, at, at+1)
	}
	for _, gone := range before {
		h.controller.memberChanged(gone.(*v1beta1.NstanceMachine), nil)
	}
	machines := make([]any, 0, len(h.machines))
	for _, machine := range h.machines {
		machines = append(machines, machine)
	}
	h.noError(h.machineCache.GetIndexer().Replace(machines, strconv.Itoa(h.version)))
}

func (h *harness) put(informer cache.SharedIndexInformer, object any) {
	h.t.Helper()
	h.noError(informer.GetIndexer().Add(object))
}

// addMachines puts Machines into the API server.
func (h *harness) addMachines(machines ...*clusterv1.Machine) {
	h.t.Helper()
	for _, machine := range machines {
		h.machines[machine.Name] = machine
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(machine)
		h.noError(err)
		h.capi.Created = append(h.capi.Created, &unstructured.Unstructured{Object: content})
	}
}

// update changes one of our objects, as somebody else would.
func (h *harness) update(resource string, object runtime.Object) {
	h.t.Helper()
	h.noError(h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource(resource), object, namespace))
}

// drop takes a member and its Machine out of the API server.
func (h *harness) drop(id string) {
	h.t.Helper()
	h.noError(h.Tracker().Delete(v1beta1.SchemeGroupVersion.WithResource("nstancemachines"), namespace, id))
	delete(h.machines, id)
}

// sync syncs the pool once and returns the writes, sorted. Machines that it deletes
// are leaving afterwards.
func (h *harness) sync() (writes []string, requeue time.Duration, err error) {
	h.t.Helper()
	ctx := klog.NewContext(h.t.Context(), ktesting.NewLogger(h.t, ktesting.NewConfig()))
	requeue, err = h.controller.sync(ctx, cache.NewObjectName(namespace, "workers"))
	for _, changed := range h.capi.Changed {
		called, body, _ := strings.Cut(changed, " {")
		name, isMachine := strings.CutPrefix(called, "DELETE machines/")
		machine := h.machines[name]
		if !isMachine || machine == nil || !strings.Contains(body, `"preconditions":{"uid":"`+string(machine.UID)+`"}`) {
			h.t.Errorf("asked for %q", changed)
			continue
		}
		writes = append(writes, "delete machines "+name)
		if h.capi.Refused == nil {
			h.machines[name] = deleted(machine.DeepCopy())
		}
	}
	for _, name := range h.created {
		writes = append(writes, "create nstancemachines "+name)
	}
	h.capi.Changed, h.created = nil, nil
	for _, write := range h.Writes() {
		// The fake does not know what it creates by name.
		if write != "create nstancemachines" {
			writes = append(writes, write)
		}
	}
	slices.Sort(writes)
	return writes, requeue, err
}

// expect syncs the pool once, without an error, with the caches up to date, and
// compares the writes.
func (h *harness) expect(want ...string) {
	h.t.Helper()
	h.show()
	got, _, err := h.sync()
	h.noError(err)
	if !slices.Equal(got, want) {
		h.t.Errorf("wrote %q, want %q", got, want)
	}
}

func (h *harness) expectEvents(want ...string) {
	h.t.Helper()
	var got []string
	for len(h.recorder.Events) > 0 {
		got = append(got, <-h.recorder.Events)
	}
	if !slices.Equal(got, want) {
		h.t.Errorf("recorded %q, want %q", got, want)
	}
}

// member is one that the API server has, nil when it has not.
func (h *harness) member(id string) *v1beta1.NstanceMachine {
	h.t.Helper()
	member, err := h.InfrastructureV1beta1().NstanceMachines(namespace).Get(context.Background(), id, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	h.noError(err)
	return member
}

func (h *harness) noError(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}
