// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// privilege is one that the token needs.
type privilege struct {
	name string
	// paths are where. One of them is enough.
	paths []string
}

// vmPrivileges are those on virtual machines.
var vmPrivileges = []string{
	"VM.Allocate", "VM.Audit", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk",
	"VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
}

// vmPaths are the paths of which one has the privileges on virtual machines.
func (o *Options) vmPaths() []string {
	if o.Pool == "" {
		return []string{"/vms"}
	}
	return []string{"/pool/" + o.Pool, "/vms"}
}

// privileges returns what the token needs.
func (o *Options) privileges() []privilege {
	needed := []privilege{{name: "Sys.Audit", paths: []string{"/"}}}
	for _, name := range vmPrivileges {
		needed = append(needed, privilege{name: name, paths: o.vmPaths()})
	}
	isos := []string{"/storage/" + o.ISOStorage}
	for _, name := range []string{"Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit"} {
		needed = append(needed, privilege{name: name, paths: isos})
	}
	disks, networks := map[string]bool{}, map[string]bool{}
	for _, subnet := range o.Subnets {
		disks[subnet.Storage], networks[subnet.Bridge] = true, true
	}
	for _, storage := range slices.Sorted(maps.Keys(disks)) {
		if storage != "" {
			needed = append(needed, privilege{name: "Datastore.AllocateSpace", paths: []string{"/storage/" + storage}})
		}
	}
	for _, network := range slices.Sorted(maps.Keys(networks)) {
		needed = append(needed, privilege{name: "SDN.Use", paths: []string{"/sdn/zones/localnetwork/" + network, sdnZones}})
	}
	return needed
}

// sdnZones is the path above those of virtual networks, whose zones are not known here.
const sdnZones = "/sdn/zones"

// checkPrivileges returns an error that names the privileges that the token does not have,
// until it has all of them once.
func (a *API) checkPrivileges(ctx context.Context) error {
	a.mu.Lock()
	checked := a.checked
	a.mu.Unlock()
	if checked {
		return nil
	}
	byPath := map[string]map[string]flag{}
	var missing []string
	for _, one := range a.options.privileges() {
		has := false
		for _, path := range one.paths {
			if byPath[path] == nil {
				all, err := a.client.permissions(ctx, path)
				if err != nil {
					return fmt.Errorf("read the privileges of the API token: %w", err)
				}
				byPath[path] = all[path]
			}
			has = has || bool(byPath[path][one.name])
		}
		if !has {
			missing = append(missing, one.name+" on "+strings.Join(one.paths, " or "))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the API token lacks privileges: %s", strings.Join(missing, "; "))
	}
	a.mu.Lock()
	a.checked = true
	a.mu.Unlock()
	return nil
}

// checkVisibility returns an error if the token may not see virtual machines: they are then
// not listed, without an error.
func (a *API) checkVisibility(ctx context.Context) error {
	for _, path := range a.options.vmPaths() {
		all, err := a.client.permissions(ctx, path)
		if err != nil {
			return fmt.Errorf("read the privileges of the API token: %w", err)
		}
		if bool(all[path]["VM.Audit"]) {
			return nil
		}
	}
	return errors.New("the API token may not see virtual machines: it lacks VM.Audit on " + strings.Join(a.options.vmPaths(), " or "))
}
