// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// cloud is a provider whose instances are files in a folder, so that they
// survive a restart of the server.
type cloud struct {
	provider.Provider // methods that the store does not use

	dir    string
	synced chan struct{}

	mu   sync.Mutex
	vms  map[string]instance.VM
	gets int
}

// newCloud returns the cloud in folder dir. It is synced.
func newCloud(t testing.TB, dir string) *cloud {
	t.Helper()
	c := &cloud{dir: dir, synced: make(chan struct{}), vms: map[string]instance.VM{}}
	close(c.synced)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(dir, file.Name()))
		require.NoError(t, err)
		var vm instance.VM
		require.NoError(t, json.Unmarshal(data, &vm))
		c.vms[vm.ID] = vm
	}
	return c
}

// show creates or changes an instance.
func (c *cloud) show(t testing.TB, vm instance.VM) {
	t.Helper()
	data, err := json.Marshal(vm)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, vm.ID), data, 0o600))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vms[vm.ID] = vm
}

// remove deletes an instance.
func (c *cloud) remove(t testing.TB, id string) {
	t.Helper()
	if err := os.Remove(filepath.Join(c.dir, id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.vms, id)
}

// ids returns the ids of all instances, in order.
func (c *cloud) ids() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.vms))
}

// getCalls returns how often Get was called since the last call of getCalls.
func (c *cloud) getCalls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	gets := c.gets
	c.gets = 0
	return gets
}

func (c *cloud) Synced() <-chan struct{} { return c.synced }

func (c *cloud) Get(id string) (instance.VM, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gets++
	vm, found := c.vms[id]
	return vm, found
}

func (c *cloud) List(group instance.GroupKey) []instance.VM {
	c.mu.Lock()
	defer c.mu.Unlock()
	var vms []instance.VM
	for _, vm := range c.vms {
		if vm.Group == group {
			vms = append(vms, vm)
		}
	}
	return vms
}

func (c *cloud) Groups() []instance.GroupKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	groups := map[instance.GroupKey]bool{}
	for _, vm := range c.vms {
		groups[vm.Group] = true
	}
	return slices.Collect(maps.Keys(groups))
}

func (c *cloud) Create(context.Context, provider.Spec) error {
	return errors.New("the store must not create instances")
}

func (c *cloud) Delete(context.Context, string) error {
	return errors.New("the store must not delete instances")
}
