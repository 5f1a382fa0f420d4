// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/rand"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/docker"
	"nstance.dev/operator/pkg/server/provider/docker/dockertest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestConformance(t *testing.T) {
	d := dockertest.Start(t)
	// The daemon may create a container after the test that requested it.
	t.Cleanup(func() {
		for _, name := range d.Containers(t, testLabel) {
			d.Remove(t, name)
		}
	})
	options := &docker.Options{Host: d.Host, Image: d.PauseImage(t), StopTimeout: 2 * time.Second}
	// 8 addresses, of which the daemon needs 3.
	net := fmt.Sprintf("10.213.%d.", rand.IntnRange(0, 256))
	limited := d.Network(t, net+"0/29", net+"4", net+"5", net+"6")
	network := d.Network(t, "")
	providertest.TestRemote(t, providertest.Config{
		// Machines need little of this machine, and most of the time is waiting.
		Run: func(t *testing.T, test func(*testing.T)) {
			t.Parallel()
			test(t)
		},
		NewBackend:     func(t *testing.T) providertest.Backend { return newBackend(t, d, options) },
		Type:           newType("tiny"),
		OtherType:      newType("other"),
		Subnet:         network,
		LimitedSubnet:  limited,
		RejectedSubnet: "nstance-test-no-such-network",
		QuietPeriod:    2 * time.Second,
	})
}

// testLabel is the label of the containers of one test.
const testLabel = "nstance-test-run"

func newType(name string) provider.InstanceType {
	return provider.InstanceType{Name: name, CPU: resource.MustParse("100m"), Memory: resource.MustParse("32Mi"), Arch: provider.ArchAMD64}
}

// testAPI is an API whose containers need no rights and have a label of the test, and that
// is polled often.
type testAPI struct {
	cloud.API
	label string
}

func (a testAPI) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	r.Args = map[string]any{"privileges": "unprivileged", "labels": map[string]any{testLabel: a.label}}
	return a.API.Launch(ctx, r)
}

func (a testAPI) Limits() cloud.Limits {
	limits := a.API.Limits()
	limits.VisibilityDelay, limits.PollInterval, limits.IdleInterval = time.Second, 100*time.Millisecond, 300*time.Millisecond
	return limits
}

// newBackend returns a backend whose clusters are those of one test.
func newBackend(t *testing.T, d *dockertest.Daemon, options *docker.Options) providertest.Backend {
	run := rand.String(8)
	label := testLabel + "=" + run
	t.Cleanup(func() {
		for _, name := range d.Containers(t, label) {
			d.Remove(t, name)
		}
	})
	return &cloudtest.Backend{
		Faults: cloudtest.NewFaults(),
		New: func(shard provider.Shard, callContext provider.CallContextFunc, wrap func(cloud.API) cloud.API) provider.Provider {
			shard.ClusterID += run
			api, err := options.NewAPI(shard)
			require.NoError(t, err)
			return docker.NewProvider(wrap(testAPI{api, run}), shard, callContext)
		},
		// Before it is started, a container is part of a launch.
		Existing: func() []string { return d.Containers(t, label, "running", "paused", "exited", "removing", "dead") },
		Remove:   func(id string) { d.Remove(t, id) },
	}
}
