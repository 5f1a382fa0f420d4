// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// source is a template on a node.
type source struct {
	vmid int
	node string
}

// placement is the node for a virtual machine, and the template to clone.
type placement struct {
	source source
	target string
}

// load is a node with its capacity and its usage.
type load struct {
	entry
	// memory is the used memory, and promised the memory that its virtual machines may use.
	// Both include the launches of this process.
	memory, promised int64
}

// fits reports whether the node may promise so much memory to another virtual machine. The used
// memory says little: idle virtual machines use less than they may, and ZFS uses for its cache
// what it would give back (https://pve.proxmox.com/wiki/ZFS_on_Linux#sysadmin_zfs_limit_memory_usage).
func (l load) fits(needed int64, commit int32) bool {
	return l.promised+needed <= l.MaxMem*int64(commit)/100
}

// share returns the used or promised share of the memory in percent, rounded down, so that
// nodes with nearly the same share count as equal.
func (l load) share() int64 { return max(l.memory, l.promised) * 100 / max(1, l.MaxMem) }

// place chooses the node for a virtual machine. A node must be configured and online, and
// have the template and enough memory that is not promised yet. place prefers the node with the lowest share of used
// memory, and among equal nodes the node with the lowest processor usage.
func (a *API) place(ctx context.Context, p plan, found *inventory) (placement, error) {
	sources, err := a.sources(ctx, p, found)
	if err != nil {
		return placement{}, err
	}
	needed := p.spec.Type.Memory.Value()
	var fitting []load
	for _, node := range a.loads(found) {
		if _, possible := sources[node.Node]; possible && node.fits(needed, a.options.MemoryCommit) {
			fitting = append(fitting, node)
		}
	}
	if len(fitting) == 0 {
		return placement{}, &cloud.Rejection{
			Scope:      cloud.Scope{Type: p.spec.Type.Name},
			RetryAfter: retryAfter,
			Err: provider.OutOfCapacity("no node has %s of memory left that it may promise (memory_commit is %d%%): %s can have the machine",
				p.spec.Type.Memory.String(), a.options.MemoryCommit, strings.Join(slices.Sorted(maps.Keys(sources)), ", ")),
		}
	}
	best := slices.MinFunc(fitting, func(x, y load) int {
		return cmp.Or(cmp.Compare(x.share(), y.share()), cmp.Compare(x.CPU, y.CPU), strings.Compare(x.Node, y.Node))
	})
	return placement{source: sources[best.Node], target: best.Node}, nil
}

// loads returns the configured nodes that are online.
func (a *API) loads(found *inventory) []load {
	byNode := map[string]*load{}
	for _, resource := range found.resources {
		if resource.Type == typeNode && found.online[resource.Node] && slices.Contains(a.options.Nodes, resource.Node) {
			byNode[resource.Node] = &load{entry: resource, memory: resource.Memory}
		}
	}
	ours := map[int]bool{}
	for _, vm := range found.ours {
		ours[vm.vmid] = !a.isLaunching(vm.identity.InstanceID) // launches are added below
	}
	for _, resource := range found.resources {
		// A node starts the virtual machines of this shard again when it has booted.
		if node := byNode[resource.Node]; node != nil && resource.VMID != 0 && (resource.Status == statusRunning || ours[resource.VMID]) {
			node.promised += resource.MaxMem
		}
	}
	a.mu.Lock()
	for _, l := range a.launches {
		if node := byNode[l.target]; node != nil && l.isFresh() {
			node.memory += l.memory
			node.promised += l.memory
		}
	}
	a.mu.Unlock()
	var all []load
	for _, node := range byNode {
		all = append(all, *node)
	}
	return all
}

// sources returns the template to clone, by the node for the clone. It is the node's own
// template of the name. A node without one can use the template of another node if all disks
// of the template and of the clone are in shared storages.
func (a *API) sources(ctx context.Context, p plan, found *inventory) (map[string]source, error) {
	own := map[string]source{}
	for _, resource := range found.resources {
		if resource.Type != typeVM || !bool(resource.Template) || resource.Name != p.image.Template || !found.online[resource.Node] {
			continue
		}
		if known, has := own[resource.Node]; !has || resource.VMID < known.vmid {
			own[resource.Node] = source{vmid: resource.VMID, node: resource.Node}
		}
	}
	if len(own) == 0 {
		return nil, rejectGroup(p.spec, fmt.Errorf("no node that is online has the template %s", p.image.Template))
	}
	sources := map[string]source{}
	var without []string
	for _, node := range a.options.Nodes {
		if template, has := own[node]; has {
			sources[node] = template
		} else if found.online[node] {
			without = append(without, node)
		}
	}
	if len(without) > 0 {
		first := own[slices.Min(slices.Collect(maps.Keys(own)))]
		shared, err := a.isShared(ctx, first, p, found)
		if err != nil {
			return nil, err
		}
		for _, node := range without {
			if shared {
				sources[node] = first
			}
		}
	}
	if len(sources) == 0 {
		if len(a.loads(found)) == 0 {
			return nil, errors.New("none of the configured nodes is online")
		}
		return nil, rejectGroup(p.spec, fmt.Errorf("none of the configured nodes has the template %s, and its disks are not shared", p.image.Template))
	}
	return sources, nil
}

// isShared reports whether a template can be cloned to other nodes.
func (a *API) isShared(ctx context.Context, template source, p plan, found *inventory) (bool, error) {
	shared := map[string]bool{}
	for _, resource := range found.resources {
		if resource.Type == typeStorage && bool(resource.Shared) {
			shared[resource.Storage] = true
		}
	}
	if a.options.FullClone && !shared[p.subnet.Storage] {
		return false, nil
	}
	config, err := a.client.config(ctx, template.node, template.vmid)
	if err != nil {
		return false, fmt.Errorf("read the configuration of template %d: %w", template.vmid, err)
	}
	for name := range config {
		volume := config.text(name)
		storage, _, _ := strings.Cut(volume, ":")
		if volumes.MatchString(name) && !strings.HasPrefix(volume, "none") && !shared[storage] {
			return false, nil
		}
	}
	return true, nil
}
