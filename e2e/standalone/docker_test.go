// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/pkg/server/provider/docker/dockertest"
	"nstance.dev/operator/pkg/server/provider/qemu/testguest"
	"nstance.dev/operator/pkg/testing/tier"
)

// The steps of a server in Docker.
const (
	readNetwork     = "read the network"
	createContainer = "create the container"
	copyUserdata    = "copy the userdata"
	startContainer  = "start the container"
	inspect         = "inspect the container"
	listContainers  = "list the containers"
	stopContainer   = "stop the container"
	removeContainer = "remove the container"
)

var dockerSteps = []struct {
	method string
	path   *regexp.Regexp
	step   string
}{
	{http.MethodGet, regexp.MustCompile(`/networks/[^/]+$`), readNetwork},
	{http.MethodPost, regexp.MustCompile(`/containers/create$`), createContainer},
	{http.MethodPut, regexp.MustCompile(`/containers/[^/]+/archive$`), copyUserdata},
	{http.MethodPost, regexp.MustCompile(`/containers/[^/]+/start$`), startContainer},
	{http.MethodGet, regexp.MustCompile(`/containers/json$`), listContainers},
	{http.MethodGet, regexp.MustCompile(`/containers/[^/]+/json$`), inspect},
	{http.MethodPost, regexp.MustCompile(`/containers/[^/]+/stop$`), stopContainer},
	{http.MethodDelete, regexp.MustCompile(`/containers/[^/]+$`), removeContainer},
}

// dockerStep returns the step of a request to Docker.
func dockerStep(r *http.Request) string {
	for _, s := range dockerSteps {
		if r.Method == s.method && s.path.MatchString(r.URL.Path) {
			return s.step
		}
	}
	return ""
}

// registrationSteps are all steps from a larger size to a registered instance.
var registrationSteps = []string{
	storeGroups, readNetwork, createRecord, createContainer, copyUserdata, startContainer, inspect, listContainers,
	storeProviderID, storeRegistration,
}

// TestServerIsKilledWithDocker kills the server after each step from the request of an instance to
// its registration, in make test-full also before each, and then at random steps while the group
// grows and shrinks. Each instance that had a record has had one container, or no container if the
// server was killed before it created the container, and nothing is left.
func TestServerIsKilledWithDocker(t *testing.T) {
	docker, host := openDocker(t)
	cluster := "e2e" + utilrand.String(8)
	k, records := new(killer), new(recorded)
	storageTap := &tap{killer: k, name: records.step, done: records.done}
	dockerTap := &tap{killer: k, name: dockerStep}
	s := newServer(t, options{
		cluster: cluster, provider: "docker", instanceType: "small.amd64", subnet: "bridge", userdata: userdata,
		providerOptions: object{"host": serveDocker(t, dockerTap, host.Address), "stop_timeout": "5s", "image": agentImage(t, docker)},
		// Whether an anonymous volume is left is part of the test.
		args:     object{"privileges": "unprivileged", "volumes": []string{"/data"}},
		bindHost: host.Bridge, advertiseHost: host.Bridge, drainTimeout: "0s",
	}, storageTap)
	k.kill = s.kill
	label := "nstance.dev/cluster-id=" + cluster
	t.Cleanup(func() {
		s.kill()
		for _, name := range docker.Containers(t, label) {
			docker.Remove(t, name)
		}
	})
	seen := follow(t, docker, cluster)
	o := newOperator(s)

	// The state after a step is the state before the next step.
	kills := killAtEachStep(t, s, o, k, tier.Pick([]when{after}, beforeAndAfter), registrationSteps, 1)
	s.start()
	ids := o.scale(kills)
	assert.Equal(t, recordNames(t, ids), s.records(), "records that exist")
	assert.Subset(t, records.list(), recordNames(t, seen.everCreated()), "instances with a record, want all that had a container")
	assert.Subset(t, seen.everCreated(), ids, "instances that had a container, want all that run")

	s.kill()
	random := rand.New(rand.NewPCG(tier.Seeds(t, 1)[0], 0))
	for n := range tier.Pick(4, 80) {
		if n == 0 || random.IntN(4) == 0 {
			s.caches++ // the cache is lost
		}
		killAtStep(s, o, k, random, 30)
	}
	s.start()
	// Without its cache, a server does not know which containers it has removed. It leaves
	// many missing instances alone until an administrator confirms that they are lost.
	o.acceptsLosses = true
	// It counts instances as running until it has looked for their containers.
	o.running = func() []string { return docker.Containers(t, label, "running") }
	ids = o.scale(lastSize)
	assert.ElementsMatch(t, ids, docker.Containers(t, label), "containers")
	assert.ElementsMatch(t, ids, docker.Containers(t, label, "running"), "running containers")
	assert.Equal(t, recordNames(t, ids), s.records(), "records")

	o.scale(0)
	assert.Empty(t, s.records(), "records")
	assert.Empty(t, docker.Containers(t, label), "containers")
	for _, volume := range seen.mounted() {
		_, err := docker.Client.VolumeInspect(t.Context(), volume, client.VolumeInspectOptions{})
		assert.True(t, errdefs.IsNotFound(err), "volume %s is left: %v", volume, err)
	}
	assert.Subset(t, records.list(), recordNames(t, seen.everCreated()), "instances with a record, want all that had a container")
	for id, count := range seen.starts() {
		assert.Equal(t, 1, count, "containers that were started for instance %s", id)
	}
	t.Logf("%d instances were recorded, %d had a container, %d a container that was started; %d volumes; steps: %v",
		len(records.list()), len(seen.everCreated()), len(seen.starts()), len(seen.mounted()), k.counts())
	assert.GreaterOrEqual(t, len(seen.mounted()), len(seen.starts()), "volumes")
}

// openDocker returns the daemon of this machine.
func openDocker(t *testing.T) (*dockertest.Daemon, *dockerhost.Host) {
	t.Helper()
	skipUnlessEnabled(t)
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	host, err := dockerhost.Open(t.Context(), filepath.Join(root, "e2e", ".cache", "docker"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, host.Close()) })
	t.Setenv(dockertest.EnvHost, host.Address)
	return dockertest.Start(t), host
}

// agentImage returns an image whose containers are agents.
func agentImage(t *testing.T, docker *dockertest.Daemon) string {
	t.Helper()
	return docker.Image(t, map[string]string{"init": testguest.BuildInit(t, runtime.GOARCH), agentProgram: programs[agentProgram]},
		"/init", "container", "/var/lib/nstance/userdata")
}

// serveDocker serves the API of a daemon through a tap, and returns its address.
func serveDocker(t *testing.T, p *tap, daemon string) string {
	t.Helper()
	socket := strings.TrimPrefix(daemon, "unix://")
	p.wrap(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "docker"}) },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}},
	})
	// The path of a socket has at most 107 bytes
	// (https://man7.org/linux/man-pages/man7/unix.7.html), and t.TempDir may be longer.
	dir, err := os.MkdirTemp("", "nstance-docker")
	require.NoError(t, err)
	path := filepath.Join(dir, "docker.sock")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	require.NoError(t, err)
	proxy := &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
	go func() { _ = proxy.Serve(listener) }()
	t.Cleanup(func() { assert.NoError(t, errors.Join(proxy.Close(), os.RemoveAll(dir))) })
	return "unix://" + path
}

// history has the events of the containers of a cluster that the daemon has reported.
type history struct {
	mu sync.Mutex
	// created and started count the containers by the name of the container, which is the id
	// of its instance.
	created, started map[string]int
	// containers are the ids of all containers, and volumes the containers of the volumes
	// that were mounted in any container of the daemon.
	containers map[string]bool
	volumes    map[string]string
}

// follow records the history until the end of the test.
func follow(t *testing.T, docker *dockertest.Daemon, cluster string) *history {
	t.Helper()
	h := &history{created: map[string]int{}, started: map[string]int{}, containers: map[string]bool{}, volumes: map[string]string{}}
	ctx, cancel := context.WithCancel(context.Background())
	stream := docker.Client.Events(ctx, client.EventsListOptions{Filters: client.Filters{}.Add("type", "container", "volume")})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case message := <-stream.Messages:
				h.add(message, cluster)
			case err := <-stream.Err:
				if ctx.Err() == nil {
					assert.NoError(t, err, "the events of Docker")
				}
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return h
}

func (h *history) add(message events.Message, cluster string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	actor := message.Actor
	switch {
	case message.Type == events.VolumeEventType && message.Action == events.ActionMount:
		h.volumes[actor.ID] = actor.Attributes["container"]
	case message.Type != events.ContainerEventType || actor.Attributes["nstance.dev/cluster-id"] != cluster:
	case message.Action == events.ActionCreate:
		h.containers[actor.ID] = true
		h.created[actor.Attributes["name"]]++
	case message.Action == events.ActionStart:
		h.started[actor.Attributes["name"]]++
	}
}

// everCreated returns the ids of the instances that ever had a container, in order.
func (h *history) everCreated() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.created))
}

// starts returns how many containers were started for each instance.
func (h *history) starts() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.started)
}

// mounted returns the volumes that the containers have had.
func (h *history) mounted() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for volume, container := range h.volumes {
		if h.containers[container] {
			names = append(names, volume)
		}
	}
	return names
}
