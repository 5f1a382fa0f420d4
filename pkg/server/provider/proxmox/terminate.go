// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/provider/cloud"
)

// Terminate stops and deletes virtual machines. If this takes longer than one call, the next
// call continues. The caller repeats the call as long as the virtual machine exists.
func (a *API) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	errs := map[string]error{}
	found, err := a.inventory(ctx)
	if err != nil {
		for _, vm := range list {
			errs[vm.ID] = fmt.Errorf("terminate the machine of instance %s: %w", vm.ID, err)
		}
		return errs
	}
	until := time.Now().Add(a.timeout)
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, m := range list {
		all := found.of(m.ID)
		if len(all) == 0 {
			err := found.certain()
			if vm, exists := found.unidentifiedOf(m.ID); exists {
				err = errors.New(vm.unidentified)
			}
			if err == nil && !a.isLaunching(m.ID) {
				err = a.removeOrphan(ctx, m.ID, found, until)
			}
			if err == nil {
				err = cloud.ErrNotFound
			}
			mu.Lock()
			errs[m.ID] = fmt.Errorf("terminate the machine of instance %s: %w", m.ID, err)
			mu.Unlock()
		}
		for _, vm := range all {
			group.Go(func() error {
				if _, err := a.terminate(ctx, vm, until); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs[m.ID] = fmt.Errorf("terminate virtual machine %d of instance %s: %w", vm.vmid, m.ID, err)
				}
				return nil
			})
		}
	}
	_ = group.Wait()
	return errs
}

// terminate stops and deletes a virtual machine. It deletes the userdata disk first, because
// the virtual machine's notes contain the name of the disk. It returns true if nothing is
// left. If it returns false without an error, the deletion continues. The error wraps
// cloud.ErrNotFound if the node does not know the virtual machine.
func (a *API) terminate(ctx context.Context, vm virtualMachine, until time.Time) (deleted bool, err error) {
	deleted, err = a.terminateSteps(ctx, vm, until)
	if errors.Is(err, cloud.ErrInProgress) {
		return false, nil
	}
	if isNotExist(err) {
		err = fmt.Errorf("%w: %w", cloud.ErrNotFound, err)
	}
	if deleted || errors.Is(err, cloud.ErrNotFound) {
		a.mu.Lock()
		delete(a.readings, vm.vmid)
		delete(a.states, vm.vmid)
		a.mu.Unlock()
	}
	return deleted, err
}

func (a *API) terminateSteps(ctx context.Context, vm virtualMachine, until time.Time) (deleted bool, err error) {
	status, err := a.client.status(ctx, vm.node, vm.vmid)
	if err != nil {
		return false, err
	}
	if status.Status != statusStopped {
		a.step("stop the virtual machine")
		if err := a.run(ctx, until, nil, func() (upid, error) { return a.client.stop(ctx, vm.node, vm.vmid) }); err != nil {
			return false, err
		}
	}
	if status.Status == statusStopped {
		if err := a.awaitUploads(ctx, vm, until); err != nil {
			return false, err
		}
	}
	a.step("delete the userdata")
	if err := a.removeUserdata(ctx, vm, until); err != nil {
		return false, fmt.Errorf("delete volume %s: %w", vm.identity.Resources.Userdata, err)
	}
	a.step("delete the virtual machine")
	if err := a.run(ctx, until, nil, func() (upid, error) { return a.client.destroy(ctx, vm.node, vm.vmid) }); err != nil {
		return false, err
	}
	a.step("return")
	return true, nil
}

// awaitUploads waits until no upload is in progress on the node. The upload of an interrupted
// launch would store the userdata after its deletion.
func (a *API) awaitUploads(ctx context.Context, vm virtualMachine, until time.Time) error {
	for {
		if running, err := a.client.hasTask(ctx, vm.node, taskUpload); err != nil || !running {
			return err
		}
		if err := sleep(ctx, minTaskInterval, until); err != nil {
			return err
		}
	}
}

// removeUserdata deletes the userdata disk, if it exists.
func (a *API) removeUserdata(ctx context.Context, vm virtualMachine, until time.Time) error {
	volume := vm.identity.Resources.Userdata
	if exists, err := a.client.hasImage(ctx, vm.node, volume); err != nil || !exists {
		return ignoreNotExist(err) // an administrator has removed the storage
	}
	err := a.run(ctx, until, nil, func() (upid, error) { return a.client.removeVolume(ctx, vm.node, volume) })
	if isNotExist(err) || isTaskError(err, "does not exist", "no such file") {
		return nil // another call has deleted it
	}
	return err
}

// removeOrphan deletes the userdata disk of an instance whose virtual machine a user has deleted:
// a disk in an ISO storage belongs to no virtual machine. A storage of one node has it on the node
// where the virtual machine was.
func (a *API) removeOrphan(ctx context.Context, id string, found *inventory, until time.Time) error {
	for _, node := range a.options.Nodes {
		if !found.online[node] {
			continue
		}
		vm := virtualMachine{node: node}
		vm.identity.Resources.Userdata = a.userdataVolume(id)
		if err := a.removeUserdata(ctx, vm, until); err != nil {
			return fmt.Errorf("delete volume %s on node %s: %w", vm.identity.Resources.Userdata, node, err)
		}
	}
	return nil
}

// userdataVolume returns the volume of the disk with the userdata of an instance.
func (a *API) userdataVolume(id string) string {
	return a.options.ISOStorage + ":iso/nstance-" + id + ".iso"
}

// emptyDrive is a drive without a disk.
const emptyDrive = "none"

// RemoveUserdata takes the userdata disk out of the drive of a virtual machine and deletes it. A
// disk in a storage of one node would keep the virtual machine from being migrated
// (https://pve.proxmox.com/wiki/Virtual_Machine_Manager, "Migration").
func (a *API) RemoveUserdata(ctx context.Context, m cloud.VM) error {
	until := time.Now().Add(a.timeout)
	found, err := a.inventory(ctx)
	if err != nil {
		return err
	}
	for _, vm := range found.of(m.ID) {
		config, err := a.client.config(ctx, vm.node, vm.vmid)
		if err != nil {
			return err
		}
		if strings.HasPrefix(config.text("ide2"), vm.identity.Resources.Userdata) {
			a.step("take out the userdata")
			form := url.Values{"ide2": {emptyDrive + ",media=cdrom"}}
			if err := a.run(ctx, until, nil, func() (upid, error) { return a.client.configure(ctx, vm.node, vm.vmid, form) }); err != nil {
				return fmt.Errorf("take the userdata out of virtual machine %d: %w", vm.vmid, err)
			}
		}
		if err := a.removeUserdata(ctx, vm, until); err != nil {
			return fmt.Errorf("delete volume %s: %w", vm.identity.Resources.Userdata, err)
		}
	}
	return nil
}

// ignoreNotExist returns nil if the thing to delete does not exist.
func ignoreNotExist(err error) error {
	if isNotExist(err) {
		return nil
	}
	return err
}
