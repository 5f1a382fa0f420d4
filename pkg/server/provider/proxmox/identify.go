// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"nstance.dev/operator/pkg/server/puidv7"
)

// lockClone is the lock of a virtual machine that is being cloned.
const lockClone = "clone"

// reading is what was read of a virtual machine whose notes have an identity.
type reading struct {
	identity identity
	// ours is true if it is one of the shard.
	ours bool
	// complete is true once everything was configured.
	complete bool
	// name and tags are those that it had.
	name, tags string
}

// isCurrent reports whether the list shows the virtual machine that was read. The list has
// no name if its node has not reported it.
func (r *reading) isCurrent(one entry) bool {
	return r != nil && r.tags == one.Tags && (one.Name == "" || one.Name == r.name)
}

// mayBeOurs reports whether a resource may be a virtual machine of the shard, as far as the
// list shows. The notes decide: a user may have changed the tags, and a clone has those of
// its template until it is configured. Without a name it may be a clone, or the list does not
// show the name yet.
func (a *API) mayBeOurs(one entry) bool {
	if one.Type != typeVM || one.VMID < firstVMID || bool(one.Template) {
		return false
	}
	return one.Name == "" || isInstanceID(one.Name) || hasTags(a.shard, one.Tags)
}

func isInstanceID(name string) bool {
	_, err := puidv7.Parse(name)
	return err == nil
}

// rememberOther stores that a virtual machine is none of ours: the list has no name any more
// when its node fails.
func (a *API) rememberOther(one entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.readings[one.VMID]; !known.isCurrent(one) {
		a.readings[one.VMID] = &reading{name: one.Name, tags: one.Tags}
	}
}

// identification is whose virtual machine one is.
type identification struct {
	reading
	// unknown is true if that cannot be known at present.
	unknown bool
}

// identifyOne reads whose virtual machine one is. A virtual machine of others, or one with
// the tags of the shard, is read once. Without the tags it is read each time: another clone of
// the same template may have its VMID by now.
func (a *API) identifyOne(ctx context.Context, one entry, online bool) (identification, error) {
	tagged := hasTags(a.shard, one.Tags)
	a.mu.Lock()
	known := a.readings[one.VMID]
	a.mu.Unlock()
	if known.isCurrent(one) && (tagged || !known.ours) {
		return identification{reading: *known}, nil
	}
	if !online {
		return a.unreadable(one, known, errors.New("the node is offline"))
	}
	config, err := a.client.config(ctx, one.Node, one.VMID)
	switch {
	case isNotExist(err):
		return identification{unknown: true}, nil // it was deleted or moved since
	case isUnreachable(err):
		return a.unreadable(one, known, err)
	case err != nil:
		return identification{}, err
	}
	identity, found := parseNotes(config.text("description"))
	// A copy that a user has made has another VMID.
	ours := found && identity.VMID == one.VMID && identity.Association == associationOf(a.shard)
	switch name := config.text("name"); {
	case config.text("lock") == lockClone && (ours || name == ""):
		cloning, err := a.isBeingCloned(ctx, one)
		return identification{reading: reading{identity: identity}, unknown: cloning}, err
	case !found && tagged && isInstanceID(name):
		return identification{}, fmt.Errorf("virtual machine %d has the tags of this shard, but its notes do not say of which group its instance is", one.VMID)
	case !found:
		return identification{}, nil
	}
	known = &reading{
		identity: identity, ours: ours, name: config.text("name"), tags: one.Tags,
		// The disk with the userdata is configured with the rest.
		complete: tagged || strings.HasPrefix(config.text("ide2"), identity.Resources.Userdata),
	}
	a.mu.Lock()
	a.readings[one.VMID] = known
	a.mu.Unlock()
	return identification{reading: *known}, nil
}

// unreadable returns what is known of a virtual machine whose configuration cannot be read.
// A list without one that is ours would be incomplete. Only here tags show that one is of
// others: a shard does not depend on the nodes of another one.
func (a *API) unreadable(one entry, known *reading, err error) (identification, error) {
	tagged, ours := hasTags(a.shard, one.Tags), known != nil && known.ours
	switch {
	case known.isCurrent(one), tagged && ours:
		return identification{reading: *known}, nil
	case tagged, ours:
		return identification{}, fmt.Errorf("read the configuration of virtual machine %d on node %s: %w", one.VMID, one.Node, err)
	}
	return identification{unknown: !hasOtherTags(a.shard, one.Tags)}, nil
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
