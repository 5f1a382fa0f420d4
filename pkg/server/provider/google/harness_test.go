// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

var (
	testShard = provider.Shard{ClusterID: "test", ID: "a", Region: gcetest.Region, Zone: "zone-a"}
	testType  = provider.InstanceType{Name: "e2-small", CPU: resource.MustParse("2"), Memory: resource.MustParse("2Gi"), Arch: provider.ArchAMD64}
	largeType = provider.InstanceType{Name: "e2-standard-4", CPU: resource.MustParse("4"), Memory: resource.MustParse("16Gi"), Arch: provider.ArchAMD64}
	workers   = instance.GroupKey{Tenant: "default", Group: "workers"}
)

// testOptions returns the options for a server that serves.
func testOptions(s *gcetest.Server) *Options {
	return &Options{
		Project:  gcetest.Project,
		Endpoint: s.Endpoint(),
		Machine:  map[string]any{argImage: gcetest.Image},
		Subnets: map[string]Subnet{
			"subnet": {Subnetwork: "subnet"}, "two": {Subnetwork: "two"}, "full": {Subnetwork: "full"},
			"missing": {Subnetwork: "missing"},
		},
		CommonOptions: provider.CommonOptions{InstanceTypes: provider.Catalogue{testType.Name: testType, largeType.Name: largeType}},
	}
}

// inBubble runs a test in a bubble of synctest with a server that serves in memory.
func inBubble(t *testing.T, s *gcetest.Server, test func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		s.StartInMemory(t)
		w := &world{t: t, Server: s, options: testOptions(s)}
		w.api = w.newAPI()
		test(t, w)
	})
}

// world is a project and the calls to it.
type world struct {
	*gcetest.Server
	t       *testing.T
	options *Options
	api     *API
}

// newAPI returns the calls of another process.
func (w *world) newAPI() *API {
	w.t.Helper()
	api, err := newAPI(w.options, testShard, w.Transport())
	require.NoError(w.t, err)
	return api
}

// startProvider starts the provider of a process.
func (w *world) startProvider() *providertest.Harness {
	w.t.Helper()
	return providertest.Start(w.t, func(callContext provider.CallContextFunc) provider.Provider {
		return cloud.New(w.newAPI(), w.options.engine(testShard, callContext))
	})
}

// request returns one for a new instance.
func request(t *testing.T) cloud.Request {
	t.Helper()
	return cloudtest.NewRequest(t, testType, "subnet")
}

// newSpec returns one without an id.
func newSpec(t *testing.T) provider.Spec {
	t.Helper()
	spec := request(t).Spec
	spec.ID = ""
	return spec
}

// launch launches a machine with as many calls as that takes.
func (w *world) launch(r cloud.Request) cloud.VM {
	w.t.Helper()
	for {
		m, err := w.api.Launch(w.t.Context(), r)
		if err != nil && errors.Is(err, cloud.ErrInProgress) {
			time.Sleep(time.Second)
			continue
		}
		require.NoError(w.t, err)
		return m
	}
}

// launchRunning launches a machine and waits until it runs.
func (w *world) launchRunning(r cloud.Request) cloud.VM {
	w.t.Helper()
	m := w.launch(r)
	time.Sleep(w.BootTime)
	return m
}

// list lists the machines by id.
func (w *world) list() map[string]cloud.VM {
	w.t.Helper()
	return cloudtest.ListByID(w.t, w.api)
}

// rejection returns the rejection with which a launch fails.
func (w *world) rejection(r cloud.Request) *cloud.Rejection {
	w.t.Helper()
	_, err := w.api.Launch(w.t.Context(), r)
	rejection, ok := errors.AsType[*cloud.Rejection](err)
	require.True(w.t, ok, "got error %v, want a rejection", err)
	return rejection
}
