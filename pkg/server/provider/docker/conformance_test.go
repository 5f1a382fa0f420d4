// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/rand"

	"nstance.dev/operator/pkg/server/instance"
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

// newBackend returns a backend with clusters of one test.
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

// TestAnOutage: whatever is wrong with the responses of the daemon, neither a list nor a
// lookup reports that a container does not exist. If the daemon reports wrongly that no
// container exists, the list fails.
func TestAnOutage(t *testing.T) {
	respond := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for name, handler := range map[string]http.HandlerFunc{
		"lost connections":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"HTTP 400":          respond(http.StatusBadRequest, `{"message": "client version 1.0 is too old"}`),
		"HTTP 403":          respond(http.StatusForbidden, `{"message": "forbidden"}`),
		"HTTP 404":          respond(http.StatusNotFound, `{"message": "page not found"}`),
		"HTTP 500":          respond(http.StatusInternalServerError, `{"message": "layer does not exist"}`),
		"HTTP 502":          respond(http.StatusBadGateway, "<html></html>"),
		"HTTP 503":          respond(http.StatusServiceUnavailable, ""),
		"an empty response": respond(http.StatusOK, ""),
		"half a response":   respond(http.StatusOK, `[{"Id": "a"}, `),
		"another response":  respond(http.StatusOK, "<html></html>"),
	} {
		t.Run(name, func(t *testing.T) {
			daemon := httptest.NewServer(handler)
			defer daemon.Close()
			options := &docker.Options{Host: strings.Replace(daemon.URL, "http://", "tcp://", 1)}
			api, err := options.NewAPI(provider.Shard{ClusterID: "test", ID: "a"})
			require.NoError(t, err)
			_, err = api.List(t.Context())
			require.Error(t, err, "list")
			id := providertest.NewID(t)
			_, found, err := api.Find(t.Context(), id)
			assert.False(t, found)
			if name != "HTTP 404" {
				require.Error(t, err, "find")
			}
			_, err = api.Launch(t.Context(), cloud.Request{Token: id, Spec: provider.Spec{
				ID: id, Group: instance.GroupKey{Tenant: "default", Group: "workers"}, Type: newType("tiny"), Subnet: "bridge",
				Args: map[string]any{"image": "image"},
			}})
			assert.Error(t, err, "launch")
		})
	}
}
