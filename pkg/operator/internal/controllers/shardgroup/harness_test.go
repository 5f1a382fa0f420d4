// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// harness is a controller of one shard group on shard "a".
type harness struct {
	*controllertest.Harness
	controller *Controller
	// paused is what pauses the pool, and drains are the drains of the group.
	paused string
	drains drains
}

// newHarness returns a controller with objects in its cache, and shard "a"
// connected and without groups.
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

// pools reports what pauses the pool of the harness.
type pools struct{ h *harness }

func (p pools) PausedBy(*v1beta1.NstanceShardGroup) (string, error) { return p.h.paused, nil }
func (p pools) AddPauseHandler(pauseHandler)                        {}

func (p pools) Writer(_ context.Context, _ *v1beta1.NstanceShardGroup, settings ...string) string {
	return "written: " + strings.Join(settings, ",")
}

// drainSummary reports the drains of the harness.
type drainSummary struct{ h *harness }

func (d drainSummary) Summary(string, string) (draining, blocked int, message string) {
	return d.h.drains.draining, d.h.drains.blocked, d.h.drains.message
}
func (d drainSummary) AddHandler(func(shard, group, instance string)) {}

// a returns shard "a".
func (h *harness) a() *shardtest.Shard { return h.Fake.ByID["a"] }

// setGroup puts the group "workers" into the cache of shard "a", nil removes it.
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

// accept returns the group that a server makes of config.
func accept(config shard.GroupConfig) (shard.Group, error) {
	return shardtest.Accept("workers", config), nil
}

// change changes the object on the API server as a new spec.
func (h *harness) change(change func(*v1beta1.NstanceShardGroup)) {
	h.T.Helper()
	controllertest.Change(h.API, "workers--a", func(object *v1beta1.NstanceShardGroup) {
		object.Generation++
		change(object)
	})
}

// object returns the shard group on the API server, nil when it was deleted.
func (h *harness) object() *v1beta1.NstanceShardGroup {
	return controllertest.Get[*v1beta1.NstanceShardGroup](h.API, "workers--a")
}

// conditions returns the object's conditions in words.
func (h *harness) conditions() []string {
	h.T.Helper()
	return describe(h.object().Status.Conditions)
}
