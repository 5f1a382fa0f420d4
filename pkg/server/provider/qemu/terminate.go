// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"nstance.dev/operator/pkg/server/provider/cloud"
)

const (
	// quitTimeout is how long QEMU may take to exit before it is killed.
	quitTimeout = 5 * time.Second
	// exitTimeout is how long one call waits until QEMU has exited.
	exitTimeout = time.Second
)

// Terminate stores the request to delete VMs and signals their guests to shut down. Later
// calls of List and Find, in any process, complete the deletion.
func (a *API) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	errs := map[string]error{}
	for _, vm := range list {
		if err := a.terminate(ctx, a.folders.of(vm.ID)); err != nil {
			errs[vm.ID] = fmt.Errorf("terminate the machine of instance %s: %w", vm.ID, err)
		}
	}
	return errs
}

func (a *API) terminate(ctx context.Context, f folder) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, found, err := f.readIdentity(a.shard)
	if err != nil {
		return err
	}
	if !found {
		return cloud.ErrNotFound
	}
	a.step("write the deletion")
	if _, err := os.Stat(f.file(deletionFile)); errors.Is(err, fs.ErrNotExist) {
		if err := f.writeJSON(deletionFile, deletion{RequestedAt: time.Now()}); err != nil {
			return ignoreNotExist(err)
		}
	}
	_, _, err = a.inspect(ctx, f)
	return err
}

// shutDown makes the next step to delete a VM whose folder is locked, usually by QEMU. First
// the guest shuts down, then QEMU exits, and at last QEMU is killed. It returns true once the
// VM does not exist any more.
func (a *API) shutDown(ctx context.Context, f folder, d deletion) (removed bool, err error) {
	left := a.options.ShutdownGrace - time.Since(d.RequestedAt)
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if left+quitTimeout <= 0 {
		a.step("kill QEMU")
		if err := f.kill(); err != nil {
			return false, err
		}
		return a.removeExited(ctx, f)
	}
	// If QEMU does not respond now, it is killed in time.
	var answer status
	if err := f.execute(ctx, "query-status", &answer); err != nil {
		return false, nil
	}
	if left > 0 && answer.Status == "running" {
		// A guest ignores the power button while it boots, so the button is pressed each time.
		a.step("shut down the guest")
		_ = f.execute(ctx, "system_powerdown", nil)
		return false, nil
	}
	a.step("quit QEMU")
	_ = f.execute(ctx, "quit", nil)
	return a.removeExited(ctx, f)
}

// removeExited removes the folder once QEMU has exited. It returns false if QEMU takes too
// long for one call.
func (a *API) removeExited(ctx context.Context, f folder) (removed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, exitTimeout)
	defer cancel()
	for {
		lock, err := f.lock(syscall.LOCK_EX)
		switch {
		case err == nil:
			a.step("remove the folder")
			err = ignoreNotExist(f.remove())
			a.mu.Lock()
			delete(a.silent, f.id)
			a.mu.Unlock()
			return err == nil, errors.Join(err, lock.Close())
		case errors.Is(err, fs.ErrNotExist):
			return true, nil
		case !errors.Is(err, errLocked):
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-time.After(retryInterval):
		}
	}
}
