// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller/controllertest"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
)

// The resource versions of the cache of pools at first, of a pool that is created,
// and of the cache when it shows that.
const (
	firstVersion   = "500"
	createdVersion = "1000"
	shownVersion   = "2000"
)

// harness is a controller whose caches show what the test wants.
type harness struct {
	*controllertest.API

	t            *testing.T
	controller   *Controller
	informers    infrastructure.Interface
	machinePools *capi.Informer[*clusterv1.MachinePool]
	clusters     *capi.Informer[*clusterv1.Cluster]
	recorder     *events.FakeRecorder
	// refusal is the answer to creations, if it is set.
	refusal error
}

// newHarness makes a controller that sees shards, and objects in its caches.
func newHarness(t *testing.T, shards servers, objects ...runtime.Object) *harness {
	t.Helper()
	h := &harness{
		API:      controllertest.NewAPI(t, objects...),
		t:        t,
		recorder: events.NewFakeRecorder(10),
	}
	h.PrependReactor("create", "nstancemachinepools", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if h.refusal != nil {
			return true, nil, h.refusal
		}
		created := action.(clienttesting.CreateActionImpl)
		pool := created.Object.(*v1beta1.NstanceMachinePool)
		pool.ResourceVersion = createdVersion
		return true, pool, h.Tracker().Create(created.GetResource(), pool, namespace)
	})
	client := controllertest.NewCAPI(t).Client
	h.informers = h.Informers()
	h.machinePools = capi.NewMachinePoolInformer(client, namespace, 0)
	h.clusters = capi.NewClusterInformer(client, namespace, 0)
	c, registrations, err := New(namespace, clusterName, h.InfrastructureV1beta1(),
		h.informers.NstanceMachinePools(), h.informers.NstanceShardGroups(), h.machinePools, h.clusters, shards, shards, h.recorder)
	if err != nil {
		t.Fatal(err)
	}
	if len(registrations) != 4 {
		t.Errorf("%d registrations to wait for, want one per informer", len(registrations))
	}
	h.controller = c
	h.show(firstVersion)
	return h
}

// show makes the caches of our kinds up to date, and that of pools as new as
// version says.
func (h *harness) show(version string) {
	h.t.Helper()
	h.Show(h.informers)
	pools := h.informers.NstanceMachinePools().Informer().GetIndexer()
	if err := pools.Replace(pools.List(), version); err != nil {
		h.t.Fatal(err)
	}
}

// sync syncs the group "main" once and returns the writes.
func (h *harness) sync() (writes []string, requeue time.Duration, err error) {
	ctx := klog.NewContext(h.t.Context(), ktesting.NewLogger(h.t, ktesting.NewConfig()))
	requeue, err = h.controller.sync(ctx, cache.NewObjectName(namespace, "main"))
	return h.Writes(), requeue, err
}

// expect syncs the group "main" once, without an error, and compares the writes.
func (h *harness) expect(want ...string) {
	h.t.Helper()
	got, requeue, err := h.sync()
	if err != nil {
		h.t.Fatal(err)
	}
	if !slices.Equal(got, want) || requeue != 0 {
		h.t.Errorf("wrote %q and waits %s, want %q", got, requeue, want)
	}
}

func (h *harness) pool(name string) *v1beta1.NstanceMachinePool {
	h.t.Helper()
	pool, err := h.InfrastructureV1beta1().NstanceMachinePools(namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return pool
}

func (h *harness) add(indexer cache.Indexer, object any) {
	h.t.Helper()
	if err := indexer.Add(object); err != nil {
		h.t.Fatal(err)
	}
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
