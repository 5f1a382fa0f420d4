// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// firstVMID and lastVMID bound those of instances.
const (
	firstVMID = 10000
	lastVMID  = 999_999_999
)

// vm is a virtual machine of the shard.
type vm struct {
	vmid     int
	node     string
	identity identity
	// complete is true once everything was configured.
	complete bool
	// status is what its node last reported, maybe not for long.
	status string
	// reachable is false if its node is offline.
	reachable bool
}

// inventory is what the cluster has at some time.
type inventory struct {
	resources []entry
	ours      []vm
	// online are the nodes of the cluster that are.
	online map[string]bool
	// unknown are virtual machines that may be ours: those that are being cloned, those that
	// were moved since, and others without tags whose configuration cannot be read. A clone
	// has its identity before the last of several disks is cloned.
	unknown []vm
}

// of returns the virtual machines of an instance.
func (i *inventory) of(id string) []vm {
	return slices.DeleteFunc(slices.Clone(i.ours), func(one vm) bool { return one.identity.InstanceID != id })
}

// certain returns an error if some virtual machine may be one of the shard.
func (i *inventory) certain() error {
	if len(i.unknown) == 0 {
		return nil
	}
	var names []string
	for _, one := range i.unknown {
		names = append(names, fmt.Sprintf("%d on node %s", one.vmid, one.node))
	}
	return fmt.Errorf("it is not known yet whose virtual machines these are: %s", strings.Join(names, ", "))
}

// inventory reads what the cluster has. Without quorum a node knows only what was there
// before, which is an error. The virtual machines on a node that is offline are listed all
// the same, since every node has the configurations of the whole cluster.
func (a *API) inventory(ctx context.Context) (*inventory, error) {
	members, err := a.client.clusterStatus(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the status of the cluster: %w", err)
	}
	found := &inventory{online: map[string]bool{}}
	for _, one := range members {
		switch {
		case one.Type == "cluster" && !bool(one.Quorate):
			return nil, errors.New("the cluster has no quorum")
		case one.Type == typeNode:
			found.online[one.Name] = bool(one.Online)
		}
	}
	if len(found.online) == 0 {
		return nil, errors.New("the status of the cluster has no nodes")
	}
	if found.resources, err = a.client.resources(ctx); err != nil {
		return nil, fmt.Errorf("list the virtual machines: %w", err)
	}
	for name := range found.online {
		if !slices.ContainsFunc(found.resources, func(one entry) bool { return one.Type == typeNode && one.Node == name }) {
			return nil, fmt.Errorf("the list of the cluster is incomplete: it lacks node %s", name)
		}
	}
	a.forgetOthers(found.resources)
	return found, a.identify(ctx, found)
}

// forgetOthers forgets the virtual machines that are not listed: their ids may be used for
// others.
func (a *API) forgetOthers(list []entry) {
	listed := map[int]bool{}
	for _, one := range list {
		if one.Type == typeVM || one.VMID != 0 {
			listed[one.VMID] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for vmid := range a.readings {
		if !listed[vmid] {
			delete(a.readings, vmid)
		}
	}
	for vmid := range a.states {
		if !listed[vmid] {
			delete(a.states, vmid)
		}
	}
}

// identify finds the virtual machines of the shard.
func (a *API) identify(ctx context.Context, found *inventory) error {
	var candidates []entry
	for _, one := range found.resources {
		switch {
		case a.mayBeOurs(one):
			candidates = append(candidates, one)
		case one.Type == typeVM && one.VMID >= firstVMID && one.Name != "":
			a.rememberOther(one)
		}
	}
	results := make([]identification, len(candidates))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for n, one := range candidates {
		group.Go(func() (err error) {
			results[n], err = a.identifyOne(groupCtx, one, found.online[one.Node])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for n, one := range candidates {
		result := results[n]
		candidate := vm{
			vmid: one.VMID, node: one.Node, identity: result.identity, complete: result.complete,
			status: one.Status, reachable: found.online[one.Node],
		}
		switch {
		case result.ours:
			found.ours = append(found.ours, candidate)
		case result.unknown:
			found.unknown = append(found.unknown, candidate)
		}
	}
	return nil
}
