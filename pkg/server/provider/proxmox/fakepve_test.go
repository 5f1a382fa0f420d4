// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// startFakePVE runs a cluster of fakepve, an emulator that others wrote
// (https://github.com/qisback/fakepve), until the end of the test. Its token has the privileges that
// the provider asks for, and no others. It skips the test unless the emulator is required.
func startFakePVE(t *testing.T) *Options {
	t.Helper()
	if os.Getenv(pvetest.WitnessEnv) == "" {
		t.Skipf("NOT TESTED with fakepve: %s is not set (make test-moto)", pvetest.WitnessEnv)
	}
	options := testOptions(&pvetest.Server{})
	options.Subnets = map[string]Subnet{"subnet": options.Subnets["subnet"]}
	user, secret, _ := strings.Cut(pvetest.Token, "=")
	args := []string{filepath.Join("testdata", "cluster.py"), user, secret}
	for _, needed := range options.privileges() {
		args = append(args, needed.paths[0]+"="+needed.name)
	}
	program := exec.Command("python3", args...)
	var output bytes.Buffer
	program.Stderr = &output
	input, err := program.StdinPipe()
	require.NoError(t, err)
	printed, err := program.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	t.Cleanup(func() {
		_ = input.Close() // it ends with its input
		err := program.Wait()
		assert.NoError(t, err, "fakepve has printed:\n%s", &output)
	})
	var url, fingerprint string
	_, err = fmt.Fscan(printed, &url, &fingerprint)
	require.NoError(t, err, "fakepve has not started")
	options.Connection.Endpoints = []string{url, strings.Replace(url, "127.0.0.1", "localhost", 1)}
	options.Connection.Fingerprints = []string{fingerprint}
	return options
}

// witnessed returns the calls of another process to a cluster of fakepve.
func witnessed(t *testing.T, options *Options, shard provider.Shard) *world {
	t.Helper()
	api, err := NewAPI(options, shard)
	require.NoError(t, err)
	return &world{t: t, options: options, api: api}
}

// only returns the only virtual machine of an instance.
func (w *world) only(id string) virtualMachine {
	w.t.Helper()
	found, err := w.api.inventory(w.t.Context())
	require.NoError(w.t, err)
	all := found.of(id)
	require.Len(w.t, all, 1, "virtual machines of instance %s", id)
	return all[0]
}

// TestFakePVE: the provider launches, lists and terminates machines of an emulator that others wrote,
// and what it relies on holds there.
func TestFakePVE(t *testing.T) {
	options := startFakePVE(t)
	w := witnessed(t, options, testShard)
	r := request(t)
	r.Args = map[string]any{"disk_size": "8Gi"}
	first := w.launch(r)
	// Another process finds the machine of the same request.
	assert.Equal(t, first.ProviderID, witnessed(t, options, testShard).launch(r).ProviderID)
	own := request(t)
	second := w.launch(own)
	assert.NotEqual(t, first.ProviderID, second.ProviderID)
	list := w.list()
	assert.Len(t, list, 2)
	for _, launched := range []cloud.VM{first, second} {
		assert.Equal(t, instance.Running, list[launched.ID].State)
		assert.Equal(t, launched.ProviderID, list[launched.ID].ProviderID)
	}

	other := witnessed(t, options, provider.Shard{ClusterID: "test", ID: "b", Region: "region", Zone: "zone"})
	assert.Empty(t, other.list(), "machines of another shard")
	_, exists, err := other.api.Find(t.Context(), first.ID)
	require.NoError(t, err)
	assert.False(t, exists)

	vm := w.only(first.ID)
	volume := vm.identity.Resources.Userdata
	config, err := w.api.client.config(t.Context(), vm.node, vm.vmid)
	require.NoError(t, err)
	for name, want := range map[string]string{
		"name": first.ID, "cores": "2", "sockets": "1", "memory": "1024", "net0": "virtio,bridge=vmbr0", "onboot": "1", "protection": "0",
		"ide2": volume + ",media=cdrom",
		"tags": strings.Join(append(tagsOf(testShard), instanceTag+first.ID), ";"),
	} {
		assert.Equal(t, want, config.text(name), name)
	}
	stored, err := w.api.client.hasImage(t.Context(), vm.node, volume)
	require.NoError(t, err)
	assert.True(t, stored, "the userdata")
	require.NoError(t, w.api.RemoveUserdata(t.Context(), first))
	config, err = w.api.client.config(t.Context(), vm.node, vm.vmid)
	require.NoError(t, err)
	assert.Equal(t, "none,media=cdrom", config.text("ide2"))
	stored, err = w.api.client.hasImage(t.Context(), vm.node, volume)
	require.NoError(t, err)
	assert.False(t, stored, "the userdata after they were removed")

	trial := providertest.NewTrial(own.Spec, instance.VM{ID: second.ID, ProviderID: second.ProviderID}, func() provider.Spec { return request(t).Spec })
	answers := providertest.Ask(t, examine(w.api), trial)
	assert.Len(t, answers, 9)
	for title, answer := range answers {
		want := "as expected: "
		if title == "first boot" || title == "texts of errors, a storage without space, a lock that is held" {
			want = "not checked: "
		}
		assert.Contains(t, answer, want, title)
	}

	left, userdata := w.list(), map[string]string{}
	for id := range left {
		userdata[w.api.userdataVolume(id)] = w.only(id).node
	}
	assert.Len(t, userdata, 3)
	for ; len(left) > 0; left = w.list() {
		require.Empty(t, w.api.Terminate(t.Context(), slices.Collect(maps.Values(left))))
	}
	for volume, node := range userdata {
		stored, err := w.api.client.hasImage(t.Context(), node, volume)
		require.NoError(t, err)
		assert.False(t, stored, "volume %s after the termination", volume)
	}
	found, err := w.api.inventory(t.Context())
	require.NoError(t, err)
	for _, resource := range found.resources {
		assert.True(t, resource.Type != typeVM || bool(resource.Template), "virtual machine %d is left", resource.VMID)
	}
}
