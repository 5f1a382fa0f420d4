// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/inputs"
)

// releaseVersion is the version of the release of this source.
const releaseVersion = "v0.1.0"

// releasedPrograms are the programs whose images the manifests and the charts of a release name.
var releasedPrograms = []string{"nstance-operator", "nstance-server", "nstance-admin", "marekvs-operator"}

// release is a release of this source, in a folder and in a registry without TLS on this machine.
type release struct {
	dir, host string
	digests   map[string]string

	mu sync.Mutex
	// pulls are the addresses that have requested the manifest of an image, by name and digest.
	pulls map[string]map[string]bool
}

// makeRelease makes a release and pushes it to a registry that listens at an address, as
// docs/install.md#a-release has it. The programs for users are left out.
func makeRelease(t *testing.T, root, address string) *release {
	t.Helper()
	require.NoError(t, inputs.Check(inputs.Manifests))
	r := &release{dir: t.TempDir(), digests: map[string]string{}, pulls: map[string]map[string]bool{}}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	require.NoError(t, err)
	r.host = listener.Addr().String()
	blobs := registry.NewDiskBlobHandler(t.TempDir())
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithBlobHandler(blobs))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.record(request)
		store.ServeHTTP(w, request)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { assert.NoError(t, server.Close()) })

	r.run(t, root, "images", "starts", "manifests", "checksums")
	r.run(t, root, "push")
	digests, err := os.ReadFile(filepath.Join(r.dir, "images", releaseVersion, "digests"))
	require.NoError(t, err)
	for line := range strings.Lines(string(digests)) {
		name, digest, _ := strings.Cut(strings.TrimSpace(line), " ")
		r.digests[name] = digest
	}
	require.Len(t, r.digests, len(releasedPrograms))
	return r
}

// repository is the value of REGISTRY.
func (r *release) repository() string { return r.host + "/nstance" }

// run writes parts of the release.
func (r *release) run(t *testing.T, root string, parts ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "release.sh"), parts...)
	command.Env = append(os.Environ(), "VERSION="+releaseVersion, "RELEASE_DIR="+r.dir, "REGISTRY="+r.repository(),
		"RELEASE_PROGRAMS="+strings.Join(releasedPrograms, " "))
	output, err := command.CombinedOutput()
	require.NoError(t, err, "hack/release.sh %s: %s", parts, output)
}

// record records a request for the manifest of an image.
func (r *release) record(request *http.Request) {
	image, digest, found := strings.Cut(strings.TrimPrefix(request.URL.Path, "/v2/nstance/"), "/manifests/")
	if !found {
		return
	}
	address, _, err := net.SplitHostPort(request.RemoteAddr)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := image + "@" + digest
	if r.pulls[key] == nil {
		r.pulls[key] = map[string]bool{}
	}
	r.pulls[key][address] = true
}

// forget forgets who has pulled.
func (r *release) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.pulls)
}

// pulled returns an error unless a machine has pulled the image of a program by its digest.
func (r *release) pulled(program, address string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key := program + "@" + r.digests[program]; !r.pulls[key][address] {
		return fmt.Errorf("machine %s has not pulled %s: %v", address, key, r.pulls)
	}
	return nil
}

// forgetImages removes the images of the release from all machines, so that the next Pod pulls again.
func (c *Cluster) forgetImages(t *testing.T, r *release) {
	t.Helper()
	for _, machine := range c.machinesByID(t) {
		c.runIn(t, machine, "sh", "-c", "ctr --namespace k8s.io images ls -q name~="+r.host+" | xargs -r ctr --namespace k8s.io images rm")
	}
	r.forget()
}

// expectPulled expects that the containers of Pods run images of the release, which their Nodes have pulled by
// their digests.
func (c *Cluster) expectPulled(t *testing.T, r *release, namespace, selector string, programs ...string) {
	t.Helper()
	var ran []string
	for _, pod := range c.pods(t, namespace, selector) {
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			assert.Regexp(t, `@sha256:[0-9a-f]{64}$`, container.Image, pod.Name)
		}
		for _, container := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			image, digest, _ := strings.Cut(container.ImageID, "@")
			program := filepath.Base(image)
			assert.Equal(t, r.repository()+"/"+program, image, pod.Name)
			assert.Equal(t, r.digests[program], digest, pod.Name)
			assert.NoError(t, r.pulled(program, pod.Status.HostIP), pod.Name)
			ran = append(ran, program)
		}
	}
	slices.Sort(ran)
	assert.Equal(t, programs, slices.Compact(ran), "programs of Pods %s", selector)
}
