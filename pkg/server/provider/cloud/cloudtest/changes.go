// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloudtest

import (
	"maps"
	"slices"

	"nstance.dev/operator/pkg/server/instance"
)

// Vanish deletes the machines of instances, as another client of the cloud can.
func (c *Cloud) Vanish(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.machines, func(_ string, m *machine) bool { return slices.Contains(ids, m.ID) })
}

// Become sets the state of an instance's machine.
func (c *Cloud) Become(id string, state instance.State, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.machines {
		if m.ID == id {
			m.State, m.Reason, m.fixed = state, reason, true
		}
	}
}

// Duplicate creates a second machine of an instance.
func (c *Cloud) Duplicate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range slices.Collect(maps.Values(c.machines)) {
		if m.ID == id {
			second := *m
			second.ProviderID += "-second"
			c.machines[second.ProviderID] = &second
		}
	}
}

// SetFull makes the cloud reject launches of an instance type for lack of capacity.
func (c *Cloud) SetFull(typeName string, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full[typeName] = full
}
