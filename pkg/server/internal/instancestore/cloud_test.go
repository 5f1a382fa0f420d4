// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// cloud is a provider whose instances are files in a folder, so that they
// survive a restart of the server.
type cloud struct {
	*providertest.Instances

	dir string
}

// newCloud returns the cloud in folder dir. It is synced.
func newCloud(t testing.TB, dir string) *cloud {
	t.Helper()
	c := &cloud{Instances: providertest.NewInstances(), dir: dir}
	require.NoError(t, os.MkdirAll(dir, 0o700))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(dir, file.Name()))
		require.NoError(t, err)
		var vm instance.VM
		require.NoError(t, json.Unmarshal(data, &vm))
		c.Put(vm)
	}
	return c
}

// show creates or changes an instance.
func (c *cloud) show(t testing.TB, vm instance.VM) {
	t.Helper()
	data, err := json.Marshal(vm)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, vm.ID), data, 0o600))
	c.Put(vm)
}

// remove deletes an instance.
func (c *cloud) remove(t testing.TB, id string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(c.dir, id)))
	c.Remove(id)
}

// ids returns the ids of all instances, in order.
func (c *cloud) ids() []string {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return slices.Sorted(maps.Keys(c.VMs))
}
