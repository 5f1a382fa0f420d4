// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package dockertest gives tests a Docker daemon, with an image and networks.
package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/rand"

	"nstance.dev/operator/pkg/testing/source"
)

// EnvHost names the environment variable with the address of the daemon. If it is set,
// tests fail when the daemon does not respond, instead of being skipped.
const EnvHost = "NSTANCE_TEST_DOCKER"

// Daemon is a daemon that responds.
type Daemon struct {
	Client *client.Client
	// Host is its address, empty for the default.
	Host string
}

// Start returns the daemon of EnvHost, or else the default daemon of Docker's clients.
func Start(t testing.TB) *Daemon {
	t.Helper()
	host, required := os.LookupEnv(EnvHost)
	options := []client.Opt{client.FromEnv}
	if host != "" {
		options = append(options, client.WithHost(host))
	}
	docker, err := client.New(options...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, docker.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := docker.Ping(ctx, client.PingOptions{}); err != nil {
		if !required {
			t.Skipf("no Docker daemon responds (make test-docker starts one): %v", err)
		}
		require.NoError(t, err, "the Docker daemon %s of %s must respond", host, EnvHost)
	}
	return &Daemon{Client: docker, Host: host}
}

// PauseImage imports an image whose containers run until they are stopped, and returns
// its name.
func (d *Daemon) PauseImage(t testing.TB) string {
	t.Helper()
	content, err := pause()
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "pause")
	require.NoError(t, os.WriteFile(program, content, 0o700))
	return d.Image(t, map[string]string{"pause": program}, "/pause")
}

// pause builds the program of PauseImage once for all tests of a process.
var pause = sync.OnceValues(func() ([]byte, error) {
	const folder = "pkg/server/provider/docker/dockertest/pause"
	root, err := source.Root(folder + "/*.go")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pause")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "pause")
	if _, err := source.Go(root, "build", "-o", program, "./"+folder); err != nil {
		return nil, err
	}
	return os.ReadFile(program)
})

// Image imports an image with nothing but some files, executable and by their names in the
// image, and returns its name. Containers run the entrypoint.
func (d *Daemon) Image(t testing.TB, files map[string]string, entrypoint ...string) string {
	t.Helper()
	archive := new(bytes.Buffer)
	w := tar.NewWriter(archive)
	for name, path := range files {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(data))}))
		_, err = w.Write(data)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	quoted, err := json.Marshal(entrypoint)
	require.NoError(t, err)

	name := "localhost/nstance-test:" + rand.String(8)
	imported, err := d.Client.ImageImport(t.Context(), client.ImageImportSource{Source: archive, SourceName: "-"}, name,
		client.ImageImportOptions{Changes: []string{"ENTRYPOINT " + string(quoted)}})
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, imported)
	require.NoError(t, err)
	require.NoError(t, imported.Close())
	t.Cleanup(func() {
		_, err := d.Client.ImageRemove(context.Background(), name, client.ImageRemoveOptions{Force: true})
		assert.NoError(t, err)
	})
	return name
}

// Network creates a network and returns its name. With a subnet, it has only the addresses
// of it that are not in use.
func (d *Daemon) Network(t testing.TB, subnet string, inUse ...string) string {
	t.Helper()
	name := "nstance-test-" + rand.String(8)
	options := client.NetworkCreateOptions{Driver: "bridge"}
	if subnet != "" {
		pool := network.IPAMConfig{Subnet: netip.MustParsePrefix(subnet), AuxAddress: map[string]netip.Addr{}}
		for _, address := range inUse {
			pool.AuxAddress[address] = netip.MustParseAddr(address)
		}
		options.IPAM = &network.IPAM{Driver: "default", Config: []network.IPAMConfig{pool}}
	}
	_, err := d.Client.NetworkCreate(t.Context(), name, options)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := d.Client.NetworkRemove(context.Background(), name, client.NetworkRemoveOptions{})
		assert.NoError(t, err)
	})
	return name
}

// Containers returns the names of the containers with a label, in one of some states, or
// in any.
func (d *Daemon) Containers(t testing.TB, label string, states ...string) []string {
	t.Helper()
	filters := client.Filters{}.Add("label", label)
	if len(states) > 0 {
		filters = filters.Add("status", states...)
	}
	list, err := d.Client.ContainerList(context.Background(), client.ContainerListOptions{All: true, Filters: filters})
	require.NoError(t, err)
	var names []string
	for _, c := range list.Items {
		names = append(names, filepath.Base(c.Names[0]))
	}
	return names
}

// Remove removes a container. It need not exist.
func (d *Daemon) Remove(t testing.TB, name string) {
	t.Helper()
	_, err := d.Client.ContainerRemove(context.Background(), name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		require.NoError(t, err)
	}
}

// Exec runs a command in a container and returns its output. The error is the error of the
// command.
func (d *Daemon) Exec(t testing.TB, container string, command ...string) (string, error) {
	t.Helper()
	created, err := d.Client.ExecCreate(t.Context(), container, client.ExecCreateOptions{Cmd: command, AttachStdout: true, AttachStderr: true})
	require.NoError(t, err)
	attached, err := d.Client.ExecAttach(t.Context(), created.ID, client.ExecAttachOptions{})
	require.NoError(t, err)
	defer attached.Close()
	stdout, stderr := new(strings.Builder), new(strings.Builder)
	_, err = stdcopy.StdCopy(stdout, stderr, attached.Reader)
	require.NoError(t, err)
	result, err := d.Client.ExecInspect(t.Context(), created.ID, client.ExecInspectOptions{})
	require.NoError(t, err)
	if result.ExitCode != 0 {
		return stdout.String(), fmt.Errorf("%v has exited with code %d: %s", command, result.ExitCode, stderr)
	}
	return stdout.String(), nil
}
