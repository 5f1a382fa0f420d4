// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller/controllertest"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// oneShard is shard "a", and what is known of it. It is no server: what it
// answers is the test's to say.
type oneShard struct {
	configured, synced, reachable bool

	lost  error
	group *shard.Group
	// upsert and remove answer the calls, which are written down in calls.
	upsert func(shard.GroupConfig) (shard.Group, error)
	remove error
	calls  []string
	// paused is what pauses the pool.
	paused string
	drains drains
}

func (s *oneShard) Has(id string) bool       { return id == "a" && s.configured }
func (s *oneShard) HasSynced(id string) bool { return id == "a" && s.synced }

func (s *oneShard) PausedBy(*v1beta1.NstanceShardGroup) (string, error) { return s.paused, nil }

func (s *oneShard) Summary(string, string) (draining, blocked int, message string) {
	return s.drains.draining, s.drains.blocked, s.drains.message
}

func (s *oneShard) Reachable(string) (bool, error) { return s.reachable, s.lost }

func (s *oneShard) Get(_, key string) (shard.Group, bool) {
	if s.group == nil || s.group.Key != key {
		return shard.Group{}, false
	}
	return *s.group, true
}

// Observe keeps the instances of a known group, as the real cache does.
func (s *oneShard) Observe(_ string, group shard.Group) {
	if s.group != nil {
		group.ActualSize, group.ProviderIDs = s.group.ActualSize, s.group.ProviderIDs
		group.ListsInstances, group.Instances = s.group.ListsInstances, s.group.Instances
	}
	s.group = &group
}

func (s *oneShard) UpsertGroup(_ context.Context, id, key string, config shard.GroupConfig) (shard.Group, error) {
	s.calls = append(s.calls, fmt.Sprintf("upsert %s on %s with size %d", key, id, config.Size))
	return s.upsert(config)
}

func (s *oneShard) DeleteGroup(_ context.Context, id, key string) error {
	s.calls = append(s.calls, fmt.Sprintf("delete %s on %s", key, id))
	return s.remove
}

// accept is an upsert that does what is asked for, without a word about
// instances.
func accept(config shard.GroupConfig) (shard.Group, error) {
	return shard.Group{Key: "workers", Template: config.Template, Size: config.Size, InstanceType: config.InstanceType,
		Subnets: config.Subnets, Vars: config.Vars, RemoveFirst: config.RemoveFirst, ETag: fmt.Sprintf("etag-of-%d", config.Size)}, nil
}

// refuse is an upsert that fails with err.
func refuse(err error) func(shard.GroupConfig) (shard.Group, error) {
	return func(shard.GroupConfig) (shard.Group, error) { return shard.Group{}, err }
}

// harness is a controller of one shard group on one shard.
type harness struct {
	*controllertest.API

	t          *testing.T
	controller *Controller
	informers  infrastructure.Interface
	shard      *oneShard
	clock      *clocktesting.FakePassiveClock
	recorder   *events.FakeRecorder
}

// newHarness makes a controller that sees objects in its cache, and shard "a"
// connected and without groups.
func newHarness(t *testing.T, objects ...runtime.Object) *harness {
	t.Helper()
	h := &harness{
		API:      controllertest.NewAPI(t, objects...),
		t:        t,
		shard:    &oneShard{configured: true, synced: true, reachable: true, upsert: accept},
		clock:    clocktesting.NewFakePassiveClock(then.Time),
		recorder: events.NewFakeRecorder(10),
	}
	h.informers = h.Informers()
	c, _, err := New(namespace, h.InfrastructureV1beta1().NstanceShardGroups(namespace), h.informers.NstanceShardGroups(),
		h.shard, h.shard, h.shard, h.shard, h.recorder, h.clock)
	if err != nil {
		t.Fatal(err)
	}
	h.controller = c
	h.Show(h.informers)
	return h
}

// after lets time go by.
func (h *harness) after(d time.Duration) { h.clock.SetTime(h.clock.Now().Add(d)) }

// sync syncs the shard group once, with an up to date cache, and returns the
// calls to the shard and the writes to the API server.
func (h *harness) sync() (did []string, requeue time.Duration, err error) {
	h.t.Helper()
	h.Show(h.informers)
	return h.syncStale()
}

// syncStale is sync with the cache as it was.
func (h *harness) syncStale() (did []string, requeue time.Duration, err error) {
	h.t.Helper()
	ctx := klog.NewContext(h.t.Context(), ktesting.NewLogger(h.t, ktesting.NewConfig()))
	requeue, err = h.controller.sync(ctx, cache.NewObjectName(namespace, "workers--a"))
	did = slices.Concat(h.shard.calls, h.Writes())
	h.shard.calls = nil
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

// change changes the object on the API server as a new spec.
func (h *harness) change(change func(*v1beta1.NstanceShardGroup)) {
	h.t.Helper()
	object := h.object()
	object.Generation++
	change(object)
	if err := h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups"), object, namespace); err != nil {
		h.t.Fatal(err)
	}
}

// object is the shard group on the API server, nil when it is gone.
func (h *harness) object() *v1beta1.NstanceShardGroup {
	h.t.Helper()
	object, err := h.InfrastructureV1beta1().NstanceShardGroups(namespace).Get(context.Background(), "workers--a", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return object
}

// conditions are the object's conditions in words.
func (h *harness) conditions() []string {
	h.t.Helper()
	return told(h.object().Status.Conditions)
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
