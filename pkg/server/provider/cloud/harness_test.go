// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

var workers = instance.GroupKey{Tenant: "default", Group: "workers"}

var shard = provider.Shard{ClusterID: "test", ID: "a"}

// visibilityDelay is the VisibilityDelay of the cloud in the tests of this package.
const visibilityDelay = 2 * time.Minute

// world is a cloud with delayed reads, and the providers that use it one after another.
type world struct {
	*providertest.Harness
	t      *testing.T
	cloud  *cloudtest.Cloud
	faults *cloudtest.Faults
}

// run runs a test in a bubble of synctest, with a provider that is synced.
func run(t *testing.T, test func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, cloud: cloudtest.NewCloud(), faults: cloudtest.NewFaults()}
		w.faults.DelayVisibility(visibilityDelay)
		w.start()
		test(t, w)
	})
}

// start starts a provider, like another process.
func (w *world) start() {
	w.Harness = providertest.Start(w.t, func(callContext provider.CallContextFunc) provider.Provider {
		return cloud.New(w.faults.Wrap(w.cloud.API(shard)), cloud.Options{CallContext: callContext})
	})
}

// restart replaces the provider.
func (w *world) restart() {
	w.Stop()
	time.Sleep(time.Millisecond)
	w.start()
}

// expect gives the provider the instances of other processes whose machines no list has
// shown.
func (w *world) expect(ids ...string) {
	var vms []instance.VM
	for _, id := range ids {
		vms = append(vms, instance.VM{ID: id, Group: workers})
	}
	w.Provider.(provider.Expecter).Expect(vms)
}

// spec returns a request with the userdata of one rendering.
func spec(userdata string) provider.Spec {
	return provider.Spec{
		Group: workers, Kind: "knd", CreatedAt: time.Now(), Subnet: "subnet", Userdata: []byte(userdata),
		Type: provider.InstanceType{Name: "medium"},
	}
}

// runs creates instances and waits until they run and are listed.
func (w *world) runs(count int) []string {
	w.t.Helper()
	var ids []string
	want := map[string]instance.State{}
	for n := range count {
		id := w.MustCreate(spec(fmt.Sprint(n)))
		ids = append(ids, id)
		want[id] = instance.Running
	}
	w.Await(workers, want)
	time.Sleep(10 * time.Minute)
	w.DrainChanges()
	w.count()
	return ids
}

// count returns the numbers of calls since its last call.
func (w *world) count() (calls struct{ launches, terminations, lists, finds int }) {
	calls.launches, calls.terminations = w.faults.Count(cloudtest.Launch), w.faults.Count(cloudtest.Terminate)
	calls.lists, calls.finds = w.faults.Count(cloudtest.List), w.faults.Count(cloudtest.Find)
	return calls
}

// expectMade expects that each instance had exactly one machine.
func (w *world) expectMade(ids ...string) {
	w.t.Helper()
	assert.ElementsMatch(w.t, ids, w.cloud.Made(), "machines that were made")
}

// expectRejected expects that Create fails and mentions a text.
func (w *world) expectRejected(s provider.Spec, text string) {
	w.t.Helper()
	s.ID = providertest.NewID(w.t)
	require.ErrorContains(w.t, w.Create(w.t.Context(), s), text)
	_, known := w.Get(s.ID)
	assert.False(w.t, known, "a rejected instance is known")
}
