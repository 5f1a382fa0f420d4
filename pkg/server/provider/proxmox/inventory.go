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

	"nstance.dev/operator/pkg/server/puidv7"
)

// firstVMID and lastVMID bound those of instances.
const (
	firstVMID = 10000
	lastVMID  = 999_999_999
)

// lockClone is the lock of a virtual machine that is being cloned.
const lockClone = "clone"

// vm is a virtual machine of the shard.
type vm struct {
	vmid     int
	node     string
	identity identity
	// complete is true once it has the tags of the shard: everything was configured.
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
	for vmid := range a.identities {
		if !listed[vmid] {
			delete(a.identities, vmid)
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
		if a.mayBeOurs(one) {
			candidates = append(candidates, one)
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
			vmid: one.VMID, node: one.Node, identity: result.identity, complete: hasTags(a.shard, one.Tags),
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

// mayBeOurs reports whether a resource may be a virtual machine of the shard, as far as the
// list shows. One without tags is ours if a launch was interrupted; the list may not show
// its name yet.
func (a *API) mayBeOurs(one entry) bool {
	if one.Type != typeVM || one.VMID < firstVMID || bool(one.Template) || hasOtherTags(a.shard, one.Tags) {
		return false
	}
	if hasTags(a.shard, one.Tags) || one.Name == "" {
		return true
	}
	_, err := puidv7.Parse(one.Name)
	return err == nil
}

// identification is whose virtual machine one is.
type identification struct {
	identity identity
	ours     bool
	// unknown is true if that cannot be known at present.
	unknown bool
}

// identifyOne reads whose virtual machine one is. What was read before is repeated only for
// one without tags: another one may have its id by now.
func (a *API) identifyOne(ctx context.Context, one entry, online bool) (identification, error) {
	tagged := hasTags(a.shard, one.Tags)
	a.mu.Lock()
	known, found := a.identities[one.VMID]
	a.mu.Unlock()
	if tagged && found {
		return identification{identity: known, ours: true}, nil
	}
	if !online {
		return a.unreadable(one, tagged, errors.New("the node is offline"))
	}
	config, err := a.client.config(ctx, one.Node, one.VMID)
	switch {
	case isNotExist(err):
		return identification{unknown: true}, nil // it was deleted or moved since
	case isUnreachable(err):
		return a.unreadable(one, tagged, err)
	case err != nil:
		return identification{}, err
	}
	identity, found := parseNotes(config.text("description"))
	ours := found && identity.VMID == one.VMID && identity.Association == associationOf(a.shard)
	switch _, err := puidv7.Parse(config.text("name")); {
	case config.text("lock") == lockClone && (ours || config.text("name") == ""):
		cloning, err := a.isBeingCloned(ctx, one)
		return identification{identity: identity, unknown: cloning}, err
	case !found && tagged && err == nil:
		return identification{}, fmt.Errorf("virtual machine %d has the tags of this shard, but its notes do not say of which group its instance is", one.VMID)
	case !ours:
		// That includes a copy that a user has made.
		return identification{}, nil
	}
	a.mu.Lock()
	a.identities[one.VMID] = identity
	a.mu.Unlock()
	return identification{identity: identity, ours: true}, nil
}

// unreadable returns what is known of a virtual machine whose configuration cannot be read.
// A list without one that has the tags of the shard would be incomplete.
func (a *API) unreadable(one entry, tagged bool, err error) (identification, error) {
	if tagged {
		return identification{}, fmt.Errorf("read the configuration of virtual machine %d on node %s: %w", one.VMID, one.Node, err)
	}
	return identification{unknown: true}, nil
}

// isBeingCloned reports whether a virtual machine with the lock of a clone will be complete.
// If its node has failed during the clone it never will, and it is not a machine.
func (a *API) isBeingCloned(ctx context.Context, one entry) (bool, error) {
	running, err := a.client.hasTask(ctx, one.Node, taskClone)
	if err != nil || running {
		return err == nil, err
	}
	// The clone may have finished in between.
	config, err := a.client.config(ctx, one.Node, one.VMID)
	if isNotExist(err) {
		return true, nil // it was moved to its node
	}
	return err == nil && config.text("name") != "" && config.text("lock") != lockClone, err
}
