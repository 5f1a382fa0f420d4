// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker_test

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/rand"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/docker"
	"nstance.dev/operator/pkg/server/provider/docker/dockertest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// fixture is the API of a shard of its own.
type fixture struct {
	*docker.API
	t       *testing.T
	daemon  *dockertest.Daemon
	options *docker.Options
	shard   provider.Shard
	network string
	label   string
}

func newFixture(t *testing.T) *fixture { return newFixtureWith(t, "", func(*docker.Options) {}) }

// newFixtureWith returns one with a subnet and changed options.
func newFixtureWith(t *testing.T, subnet string, change func(*docker.Options)) *fixture {
	d := dockertest.Start(t)
	options := &docker.Options{Host: d.Host, Image: d.PauseImage(t), StopTimeout: time.Second}
	network := d.Network(t, subnet)
	change(options)
	shard := provider.Shard{ClusterID: rand.String(8), ID: "a", Region: "region", Zone: "zone-a"}
	api, err := options.NewAPI(shard)
	require.NoError(t, err)
	f := &fixture{
		API: api, t: t, daemon: d, options: options, shard: shard, network: network,
		label: docker.LabelClusterID + "=" + shard.ClusterID,
	}
	t.Cleanup(func() {
		for _, name := range d.Containers(t, f.label) {
			d.Remove(t, name)
		}
	})
	return f
}

func (f *fixture) request(args map[string]any) cloud.Request {
	id := providertest.NewID(f.t)
	return cloud.Request{Token: id, Spec: provider.Spec{
		ID: id, Group: instance.GroupKey{Tenant: "default", Group: "workers"}, Type: newType("tiny"),
		Subnet: f.network, Args: args, Userdata: []byte("#!/bin/sh\necho secret-nonce\n"), CreatedAt: time.Now(),
	}}
}

// find returns the machine of an instance, the same as the list has it.
func (f *fixture) find(id string) cloud.VM {
	f.t.Helper()
	m, found, err := f.Find(f.t.Context(), id)
	require.NoError(f.t, err)
	require.True(f.t, found)
	list, err := f.List(f.t.Context())
	require.NoError(f.t, err)
	assert.Contains(f.t, list, m)
	return m
}

func (f *fixture) inspect(id string) container.InspectResponse {
	f.t.Helper()
	c, err := f.daemon.Client.ContainerInspect(f.t.Context(), id, client.ContainerInspectOptions{})
	require.NoError(f.t, err)
	return c.Container
}

var unprivileged = map[string]any{"privileges": "unprivileged"}

// TestUserdataIsAFileThatOnlyRootReads, and nothing else of the container has it.
func TestUserdataIsAFileThatOnlyRootReads(t *testing.T) {
	f := newFixture(t)
	r := f.request(unprivileged)
	_, err := f.Launch(t.Context(), r)
	require.NoError(t, err)
	copied, err := f.daemon.Client.CopyFromContainer(t.Context(), r.ID, client.CopyFromContainerOptions{SourcePath: docker.UserdataPath})
	require.NoError(t, err)
	defer func() { assert.NoError(t, copied.Content.Close()) }()
	archive := tar.NewReader(copied.Content)
	header, err := archive.Next()
	require.NoError(t, err)
	content, err := io.ReadAll(archive)
	require.NoError(t, err)
	assert.Equal(t, string(r.Userdata), string(content))
	assert.Equal(t, int64(0o600), header.Mode&0o777)
	assert.NotContains(t, fmt.Sprintf("%+v %+v", f.inspect(r.ID).Config, f.inspect(r.ID).HostConfig), "secret-nonce")
}

// TestTheContainerIsAsRequested: what the instance type, the arguments and the shard say.
func TestTheContainerIsAsRequested(t *testing.T) {
	f := newFixture(t)
	r := f.request(map[string]any{
		"privileges": "capabilities",
		"env":        map[string]any{"COLOR": "blue", "NSTANCE_INSTANCE_ID": "forged"},
		"labels":     map[string]any{"example.com/team": "a"},
		"volumes":    []any{"/data", "/etc/hostname:/host/name:ro"},
		"tmpfs":      map[string]any{"/scratch": "size=1m"},
	})
	m, err := f.Launch(t.Context(), r)
	require.NoError(t, err)
	assert.Equal(t, instance.Running, m.State)
	assert.Equal(t, "docker:///zone-a/"+r.ID, m.ProviderID)
	assert.Len(t, m.Addresses, 1)
	assert.Equal(t, "tiny", m.Type)

	c := f.inspect(r.ID)
	assert.Equal(t, "/"+r.ID, c.Name)
	assert.Equal(t, r.ID, c.Config.Hostname)
	assert.Equal(t, int64(100_000_000), c.HostConfig.NanoCPUs)
	assert.Equal(t, int64(32<<20), c.HostConfig.Memory)
	assert.Contains(t, c.Config.Env, "COLOR=blue")
	assert.Contains(t, c.Config.Env, "NSTANCE_INSTANCE_ID="+r.ID)
	assert.Contains(t, c.Config.Env, "NSTANCE_PROVIDER_ID="+m.ProviderID)
	assert.Equal(t, "a", c.Config.Labels["example.com/team"])
	assert.False(t, c.HostConfig.Privileged)
	assert.Len(t, c.HostConfig.CapAdd, 4)
	assert.Equal(t, map[string]string{"/run": "", "/tmp": "exec", "/scratch": "size=1m"}, c.HostConfig.Tmpfs)
	var targets []string
	for _, mounted := range c.Mounts {
		targets = append(targets, mounted.Destination)
	}
	assert.ElementsMatch(t, []string{"/data", "/host/name", "/var/lib/containerd", "/var/lib/kubelet", "/var/log"}, targets)
}

// TestStates: what users do to a container is reported, with a reason that does not change
// with time.
func TestStates(t *testing.T) {
	f := newFixture(t)
	r := f.request(unprivileged)
	_, err := f.Launch(t.Context(), r)
	require.NoError(t, err)
	docker, ctx := f.daemon.Client, t.Context()

	_, err = docker.ContainerPause(ctx, r.ID, client.ContainerPauseOptions{})
	require.NoError(t, err)
	m := f.find(r.ID)
	assert.Equal(t, instance.Impaired, m.State)
	assert.Equal(t, "the container is paused", m.Reason)
	_, err = docker.ContainerUnpause(ctx, r.ID, client.ContainerUnpauseOptions{})
	require.NoError(t, err)
	assert.Equal(t, instance.Running, f.find(r.ID).State)
	_, err = docker.ContainerKill(ctx, r.ID, client.ContainerKillOptions{Signal: "KILL"})
	require.NoError(t, err)
	m = f.find(r.ID)
	assert.Equal(t, instance.Stopped, m.State)
	assert.Equal(t, "the container has exited with code 137", m.Reason)

	failing := f.request(map[string]any{"privileges": "unprivileged", "command": []any{"fail"}})
	_, err = f.Launch(ctx, failing)
	require.NoError(t, err)
	wait := docker.ContainerWait(ctx, failing.ID, client.ContainerWaitOptions{})
	<-wait.Result
	assert.Equal(t, "the container has exited with code 3", f.find(failing.ID).Reason)
}

// TestTerminateLeavesNothing: containers in any state, with their volumes, at once.
func TestTerminateLeavesNothing(t *testing.T) {
	f := newFixture(t)
	volumes := func() []string {
		list, err := f.daemon.Client.VolumeList(context.Background(), client.VolumeListOptions{})
		require.NoError(t, err)
		var names []string
		for _, v := range list.Items {
			names = append(names, v.Name)
		}
		return names
	}
	before := volumes()
	var list []cloud.VM
	for range 4 {
		r := f.request(map[string]any{"privileges": "capabilities"})
		m, err := f.Launch(t.Context(), r)
		require.NoError(t, err)
		list = append(list, m)
	}
	assert.Len(t, volumes(), len(before)+12)
	_, err := f.daemon.Client.ContainerPause(t.Context(), list[0].ID, client.ContainerPauseOptions{})
	require.NoError(t, err)
	_, err = f.daemon.Client.ContainerKill(t.Context(), list[1].ID, client.ContainerKillOptions{Signal: "KILL"})
	require.NoError(t, err)
	f.daemon.Remove(t, list[2].ID)

	errs := f.Terminate(t.Context(), list)
	assert.Len(t, errs, 1)
	require.ErrorIs(t, errs[list[2].ID], cloud.ErrNotFound)
	assert.Empty(t, f.daemon.Containers(t, f.label))
	assert.ElementsMatch(t, before, volumes())
	for id, err := range f.Terminate(t.Context(), list) {
		assert.ErrorIs(t, err, cloud.ErrNotFound, id)
	}
}

// TestAContainerThatWasNeverStarted: a process has stopped between creation and start. The
// same launch completes it, and otherwise it has failed.
func TestAContainerThatWasNeverStarted(t *testing.T) {
	f := newFixture(t)
	r := f.request(unprivileged)
	first, err := f.Launch(t.Context(), r)
	require.NoError(t, err)
	again, err := f.Launch(t.Context(), r)
	require.NoError(t, err)
	assert.Equal(t, first, again, "a repeated launch gives the same machine")

	created := f.inspect(r.ID)
	f.daemon.Remove(t, r.ID)
	_, err = f.daemon.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Name: r.ID, Config: &container.Config{Image: created.Config.Image, Labels: created.Config.Labels},
	})
	require.NoError(t, err)
	m := f.find(r.ID)
	assert.Equal(t, instance.Failed, m.State)
	assert.Equal(t, "the container was never started", m.Reason)
	m, err = f.Launch(t.Context(), r)
	require.NoError(t, err)
	assert.Equal(t, instance.Running, m.State)
}

// TestRejections: the daemon rejects requests that are alike, and leaves no
// container. An error of the connection is no rejection.
func TestRejections(t *testing.T) {
	f := newFixture(t)
	scope := cloud.Scope{Group: instance.GroupKey{Tenant: "default", Group: "workers"}, Type: "tiny", Subnet: f.network}
	for _, tc := range []struct {
		name, text string
		change     func(*cloud.Request)
	}{
		{"an image that does not exist", "localhost/none:1", func(r *cloud.Request) {
			r.Args = map[string]any{"image": "localhost/none:1"}
		}},
		{"more processors than there are", "CPUs", func(r *cloud.Request) { r.Type.CPU.SetMilli(10_000_000) }},
		{"a container that cannot be started", "start container", func(r *cloud.Request) {
			r.Args = map[string]any{"privileges": "unprivileged", "tmpfs": map[string]any{"/pause": ""}}
		}},
		{"rendered arguments that are invalid", `args.privileges: Unsupported value: "some"`, func(r *cloud.Request) {
			r.Args = map[string]any{"privileges": "some"}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := f.request(unprivileged)
			tc.change(&r)
			_, err := f.Launch(t.Context(), r)
			rejection := new(cloud.Rejection)
			require.ErrorAs(t, err, &rejection)
			assert.Equal(t, scope, rejection.Scope)
			assert.Contains(t, strings.ToLower(err.Error()), strings.ToLower(tc.text))
			assert.Empty(t, f.daemon.Containers(t, f.label))
		})
	}
	t.Run("no address is left", func(t *testing.T) {
		net := fmt.Sprintf("10.214.%d.", rand.IntnRange(0, 256))
		full := f.daemon.Network(t, net+"0/30")
		first, second := f.request(unprivileged), f.request(unprivileged)
		first.Subnet, second.Subnet = full, full
		room, err := f.Room(t.Context(), full)
		require.NoError(t, err)
		assert.Equal(t, 1, room)
		m, err := f.Launch(t.Context(), first)
		require.NoError(t, err)
		room, err = f.Room(t.Context(), full)
		require.NoError(t, err)
		assert.Zero(t, room)
		_, err = f.Launch(t.Context(), second)
		rejection := new(cloud.Rejection)
		require.ErrorAs(t, err, &rejection)
		assert.Equal(t, cloud.Scope{Subnet: full}, rejection.Scope)
		assert.Empty(t, f.Terminate(t.Context(), []cloud.VM{m}))
	})
	t.Run("the daemon does not respond", func(t *testing.T) {
		api, err := (&docker.Options{Host: "unix:///no/such/socket", Image: "any"}).NewAPI(provider.Shard{})
		require.NoError(t, err)
		_, err = api.Launch(t.Context(), f.request(unprivileged))
		require.Error(t, err)
		assert.NotErrorAs(t, err, new(*cloud.Rejection))
		_, found, err := api.Find(t.Context(), "any")
		assert.Error(t, err)
		assert.False(t, found)
		_, err = api.List(t.Context())
		assert.Error(t, err)
	})
}

// TestAnotherShardsContainerIsNotFound: only the labels decide whose a container is.
func TestAnotherShardsContainerIsNotFound(t *testing.T) {
	f := newFixture(t)
	r := f.request(unprivileged)
	_, err := f.Launch(t.Context(), r)
	require.NoError(t, err)
	other, err := (&docker.Options{Host: f.daemon.Host}).NewAPI(provider.Shard{ClusterID: "other", ID: "a"})
	require.NoError(t, err)
	_, found, err := other.Find(t.Context(), r.ID)
	require.NoError(t, err)
	assert.False(t, found)
	list, err := other.List(t.Context())
	require.NoError(t, err)
	assert.Empty(t, list)
}
