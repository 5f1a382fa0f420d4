// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// harness is a controller with a shard group on shard "a".
type harness struct {
	// wanted and wantedErr are the results of Wants.
	wanted    bool
	wantedErr error
	*controllertest.Harness
	controller *Controller
	// paused is the result of Pools.PausedBy, drains the result of Drains.Summary.
	paused string
	drains drains
}

// newHarness returns a controller with objects in its cache. Shard "a" is connected, and has
// no groups.
func newHarness(t testing.TB, objects ...runtime.Object) *harness {
	return newHarnessOf(t, func(*harness) {}, objects...)
}

// newHarnessOf calls setup before it constructs the controller.
func newHarnessOf(t testing.TB, setup func(*harness), objects ...runtime.Object) *harness {
	t.Helper()
	h := &harness{Harness: controllertest.NewHarness(t, shardtest.New("a"), objects...)}
	h.SyncKey = func() (time.Duration, error) { return h.controller.sync(h.Ctx, controllertest.Key("workers--a")) }
	h.FakeClock.SetTime(then.Time)
	setup(h)
	var err error
	h.controller, err = New(h.Dependencies, Options{Pools: pools{h}, Drains: drainSummary{h}})
	require.NoError(t, err)
	return h
}

// pools implements Options.Pools for the harness.
type pools struct{ h *harness }

func (p pools) Wants(context.Context, *v1beta1.NstanceShardGroup) (bool, error) {
	return p.h.wanted, p.h.wantedErr
}

func (p pools) PausedBy(*v1beta1.NstanceShardGroup) (string, error) { return p.h.paused, nil }
func (p pools) AddPauseHandler(pauseHandler)                        {}

func (p pools) Writer(_ context.Context, _ *v1beta1.NstanceShardGroup, settings ...string) string {
	return "written: " + strings.Join(settings, ",")
}

// drainSummary implements Options.Drains for the harness.
type drainSummary struct{ h *harness }

func (d drainSummary) Summary(string, string) (draining, blocked int, list []v1beta1.BlockedDrain) {
	return d.h.drains.draining, d.h.drains.blocked, d.h.drains.list
}
func (d drainSummary) Waiting(string, string) []string                { return d.h.drains.waiting }
func (d drainSummary) AddHandler(func(shard, group, instance string)) {}

// a returns shard "a".
func (h *harness) a() *shardtest.Shard { return h.Fake.ByID["a"] }

// setGroup puts the group "workers" into the cache of shard "a". nil removes it.
func (h *harness) setGroup(group *shard.Group) {
	delete(h.a().Groups, "workers")
	if group != nil {
		h.a().Groups[group.Key] = *group
	}
}

// group returns the cached group.
func (h *harness) group() *shard.Group {
	group := h.a().Groups["workers"]
	return &group
}

// accept returns the reply of a server that accepts config.
func accept(config shard.GroupConfig) (shard.Group, error) {
	return shardtest.Accept("workers", config), nil
}

// change changes the spec of the object on the API server.
func (h *harness) change(change func(*v1beta1.NstanceShardGroup)) {
	h.T.Helper()
	controllertest.Change(h.API, "workers--a", func(object *v1beta1.NstanceShardGroup) {
		object.Generation++
		change(object)
	})
}

// object returns the shard group from the API server, nil if it was deleted.
func (h *harness) object() *v1beta1.NstanceShardGroup {
	return controllertest.Get[*v1beta1.NstanceShardGroup](h.API, "workers--a")
}

// conditions returns the object's conditions as text.
func (h *harness) conditions() []string {
	h.T.Helper()
	return describe(h.object().Status.Conditions)
}

const namespace = controllertest.Namespace

// newObject returns a shard group with 3 instances of the group "workers" on shard "a".
func newObject() *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "workers--a", UID: "uid-workers", Generation: 1,
			Finalizers: []string{v1beta1.FinalizerShardGroup},
		},
		Spec: v1beta1.NstanceShardGroupSpec{
			Group: "workers", Shard: "a", Size: 3,
			GroupSettings: v1beta1.GroupSettings{Template: "standard", InstanceType: "large", Subnets: []v1beta1.Identifier{"private"}, Vars: map[string]string{"a": "1"}},
		},
	}
}

// reported returns the group on a shard that matches newObject.
func reported() *shard.Group {
	return &shard.Group{
		Key: "workers", Tenant: "default", GroupSettings: shard.GroupSettings{Template: "standard", InstanceType: "large", Subnets: []string{"private"}, Vars: map[string]string{"a": "1"}}, Size: 3, ETag: "etag-1",
		ActualSize: 3, ProviderIDs: []string{"i-1", "i-2", "i-3"},
	}
}

func changed(group *shard.Group, change func(*shard.Group)) *shard.Group {
	change(group)
	return group
}

// connected returns the observation of a connected shard. group may be nil.
func connected(group *shard.Group) observation {
	return observation{configured: true, synced: true, reachable: true, group: group, drainsKnown: true}
}
