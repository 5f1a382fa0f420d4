// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/provider/cloud"
)

// cloneKey identifies the resources that only one clone at a time may use: concurrent clones
// of a template, or to a storage, wait for locks and time out.
type cloneKey struct {
	template int
	storage  string
}

// vmidUsed are texts in the error message if a VMID is used: of the node that has the virtual
// machine, and of the file system of the cluster if another node has it
// (https://git.proxmox.com/?p=qemu-server.git;a=blob;f=src/PVE/API2/Qemu.pm, clone_vm;
// https://git.proxmox.com/?p=pve-common.git;a=blob;f=src/PVE/File.pm).
var vmidUsed = []string{"already exists", "file exists"}

// maxClaims is how many VMIDs one call tries.
const maxClaims = 20

// clone claims a VMID by cloning the template to it, and waits for the clone.
func (a *API) clone(ctx context.Context, l *launch, p plan, found *inventory, until time.Time) (virtualMachine, error) {
	if l.vmid == 0 {
		placed, err := a.place(ctx, p, found)
		if err != nil {
			return virtualMachine{}, err
		}
		a.mu.Lock()
		l.source, l.target, l.memory = placed.source, placed.target, p.spec.Type.Memory.Value()
		a.mu.Unlock()
	}
	if err := a.reserve(ctx, l, p, until); err != nil {
		return virtualMachine{}, err
	}
	for range maxClaims {
		if l.vmid == 0 {
			vmid, err := a.nextVMID(found)
			if err != nil {
				a.release(l)
				return virtualMachine{}, err
			}
			a.claim(l, vmid)
		}
		vm, err := a.cloneOnce(ctx, l, p, until)
		switch {
		case is(err, vmidUsed...), isTaskError(err, vmidUsed...):
		case l.lost:
			return vm, err // the request whose response was lost may have created it
		default:
			return vm, p.afterClone(err)
		}
		if l.lost {
			// The request whose response was lost may have created the virtual machine. The next
			// list shows it.
			return virtualMachine{}, fmt.Errorf("virtual machine %d exists: %w", l.vmid, cloud.ErrInProgress)
		}
		a.claim(l, 0)
	}
	a.release(l)
	return virtualMachine{}, fmt.Errorf("%d VMIDs in succession are used by others", maxClaims)
}

// cloneOnce clones to the claimed VMID.
func (a *API) cloneOnce(ctx context.Context, l *launch, p plan, until time.Time) (virtualMachine, error) {
	form, err := a.cloneForm(l, p)
	if err != nil {
		return virtualMachine{}, err
	}
	for {
		vm, err := a.tryClone(ctx, l, form, until)
		if !is(err, lockTimeout) && !isTaskError(err, lockTimeout) {
			return vm, err
		}
		if late := sleep(ctx, lockRetryInterval, until); late != nil {
			return virtualMachine{}, fmt.Errorf("%w: %w", late, err)
		}
	}
}

// cloneForm returns the parameters of the request to clone.
func (a *API) cloneForm(l *launch, p plan) (url.Values, error) {
	notes, err := newIdentity(a.shard, p.spec, l.vmid, a.userdataVolume(l.id)).notes()
	if err != nil {
		return nil, err
	}
	form := url.Values{"newid": {fmt.Sprint(l.vmid)}, "name": {l.id}, "description": {notes}, "full": {"0"}}
	if a.options.FullClone {
		form.Set("full", "1")
		form.Set("storage", p.subnet.Storage)
	}
	if l.target != l.source.node {
		form.Set("target", l.target)
	}
	if a.options.Pool != "" {
		form.Set("pool", a.options.Pool)
	}
	return form, nil
}

// tryClone sends the request to clone, and waits for the clone.
func (a *API) tryClone(ctx context.Context, l *launch, form url.Values, until time.Time) (virtualMachine, error) {
	a.step("clone the template")
	task, err := a.client.clone(ctx, l.source.node, l.source.vmid, form)
	a.mu.Lock()
	response, responded := errors.AsType[*apiError](err)
	definite := responded && response.isDefinite()
	l.task, l.lost = task, l.lost || err != nil && !definite
	// A virtual machine of the launch that was removed may have had the VMID.
	clear(l.tasks)
	a.mu.Unlock()
	if err == nil {
		a.step("wait for the clone")
		return a.awaitClone(ctx, l, until)
	}
	if definite && !l.lost {
		a.giveUpClaim(l, err)
	}
	return virtualMachine{}, err
}

// giveUpClaim gives up the claimed VMID after an error that has certainly created nothing,
// unless the same request may succeed later.
func (a *API) giveUpClaim(l *launch, err error) {
	retried := append(slices.Clone(vmidUsed), lockTimeout)
	if is(err, retried...) || isTaskError(err, retried...) {
		return
	}
	a.claim(l, 0)
	a.release(l)
}

// awaitClone waits for the task that clones, and returns the virtual machine. A failed task
// has removed everything that it has created.
func (a *API) awaitClone(ctx context.Context, l *launch, until time.Time) (virtualMachine, error) {
	vmid := l.vmid
	if err := a.await(ctx, l.task, until); err != nil {
		if _, failed := errors.AsType[*taskError](err); failed {
			a.mu.Lock()
			l.task = ""
			a.mu.Unlock()
			a.giveUpClaim(l, err)
		}
		return virtualMachine{}, fmt.Errorf("clone template %d to virtual machine %d: %w", l.source.vmid, vmid, err)
	}
	a.release(l)
	// The target node may know the virtual machine later than the node that has cloned it.
	for {
		config, err := a.client.config(ctx, l.target, vmid)
		switch identity, found := parseNotes(config.text("description")); {
		case err != nil && !isNotExist(err):
			return virtualMachine{}, err
		case err == nil && found && identity.InstanceID == l.id:
			a.found(l)
			return virtualMachine{vmid: vmid, node: l.target, identity: identity, reachable: true}, nil
		case err == nil && config.text("lock") == "":
			return virtualMachine{}, fmt.Errorf("virtual machine %d was changed while it was launched", vmid)
		}
		if err := sleep(ctx, minTaskInterval, until); err != nil {
			return virtualMachine{}, fmt.Errorf("virtual machine %d is not visible yet: %w", vmid, err)
		}
	}
}

// nextVMID claims the VMID above the highest known VMID in this process. The cluster accepts
// it for one virtual machine only.
func (a *API) nextVMID(found *inventory) (int, error) {
	highest := firstVMID - 1
	for _, resource := range found.resources {
		highest = max(highest, resource.VMID)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	next := max(highest, a.lastVMID) + 1
	if next > lastVMID {
		return 0, &cloud.Rejection{Err: fmt.Errorf("there is no VMID above %d", lastVMID)}
	}
	a.lastVMID = next
	return next, nil
}

// reserve waits until no other launch clones the same template to the same storage.
func (a *API) reserve(ctx context.Context, l *launch, p plan, until time.Time) error {
	key := cloneKey{template: l.source.vmid, storage: p.subnet.Storage}
	for {
		other := a.tryReserve(key, l)
		if other == nil {
			return nil
		}
		if other.task != "" {
			// The call that waits for the task may come late.
			if done, _ := a.finished(ctx, other.task); done {
				a.release(other.launch)
				continue
			}
		}
		if err := sleep(ctx, lockRetryInterval, until); err != nil {
			return fmt.Errorf("another clone of template %d is running: %w", l.source.vmid, err)
		}
	}
}

// clones is a launch that is cloning, and its task.
type clones struct {
	launch *launch
	task   upid
}

// tryReserve returns another launch that has reserved the key, or else reserves it and
// returns nil.
func (a *API) tryReserve(key cloneKey, l *launch) *clones {
	a.mu.Lock()
	defer a.mu.Unlock()
	other, reserved := a.cloning[key]
	if !reserved || other == l || !other.isFresh() {
		a.cloning[key] = l
		return nil
	}
	return &clones{launch: other, task: other.task}
}

// release ends the reservation of a launch.
func (a *API) release(l *launch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, cloning := range a.cloning {
		if cloning == l {
			delete(a.cloning, key)
		}
	}
}
