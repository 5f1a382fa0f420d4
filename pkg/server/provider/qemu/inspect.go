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

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/boot"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

const (
	// answerTimeout is how long one call waits for QEMU.
	answerTimeout = 5 * time.Second
	// silenceTimeout is how long QEMU may not respond before its VM counts as impaired. If a
	// host is busy for a moment, its VMs must not be replaced.
	silenceTimeout = time.Minute
)

// inspect returns the VM of a folder. It returns false if the folder has no identity, or if
// QEMU neither runs nor has ever responded. Then no VM was launched, and inspect removes the
// folder unless another process works on it.
func (a *API) inspect(ctx context.Context, f folder) (vm cloud.VM, exists bool, err error) {
	if _, err := os.Stat(f.path); err != nil {
		return vm, false, errors.Join(ignoreNotExist(err), a.folders.check())
	}
	// While the lock is shared, no process can start QEMU in the folder.
	lock, err := f.lock(syscall.LOCK_SH)
	locked := errors.Is(err, errLocked)
	if err != nil && !locked {
		return vm, false, ignoreNotExist(err)
	}
	if lock != nil {
		defer lock.Close() // closing it twice does no harm
	}
	content := f.read(a.shard)
	switch {
	case content.unidentified != "":
		return a.inspectUnidentified(ctx, f, content, locked), true, nil
	case !locked && content.abandoned():
		lock.Close()
		return vm, false, a.removeAbandoned(f)
	case !content.identified:
		return vm, false, nil
	}
	vm = content.identity.vm()
	switch {
	case content.isDeleted:
		vm.State = instance.Terminating
		removed, err := a.shutDown(ctx, f, content.deletion)
		return vm, !removed, err
	case !locked:
		vm.State, vm.Reason = f.exited(content.launch)
	default:
		vm.State, vm.Reason = a.query(ctx, f, content.launched)
	}
	return vm, true, f.trimSerialLog()
}

// inspectUnidentified returns the VM of a folder whose files cannot be read or were copied from
// another folder. It changes nothing there.
func (a *API) inspectUnidentified(ctx context.Context, f folder, c content, locked bool) cloud.VM {
	vm := cloud.VM{ID: f.id, Unidentified: c.unidentified}
	if locked {
		vm.State, vm.Reason = a.query(ctx, f, true)
	} else {
		vm.State, vm.Reason = f.exited(c.launch)
	}
	return vm
}

// content has the facts from the files of a folder.
type content struct {
	// unidentified says why the files of the folder cannot be read, or of which other VM they are.
	unidentified                    string
	identity                        identity
	launch                          launch
	deletion                        deletion
	identified, launched, isDeleted bool
}

// read reads the files of a folder. One folder whose files are damaged must not hide the VMs of
// the others, so it returns no error.
func (f folder) read(shard provider.Shard) (c content) {
	var errs [3]error
	c.identity, c.identified, errs[0] = f.readIdentity(shard)
	c.launched, errs[1] = f.readJSON(launchedFile, &c.launch)
	c.isDeleted, errs[2] = f.readJSON(deletionFile, &c.deletion)
	if err := errors.Join(errs[:]...); err != nil {
		c.unidentified = err.Error()
	}
	return c
}

// abandoned reports whether the folder has no VM, provided that no process has locked it.
func (c content) abandoned() bool {
	return !c.identified || !c.launched || c.isDeleted
}

// removeAbandoned removes a folder without a VM, unless another process works on it.
func (a *API) removeAbandoned(f folder) error {
	lock, err := f.lock(syscall.LOCK_EX)
	if err != nil {
		if errors.Is(err, errLocked) {
			return nil
		}
		return ignoreNotExist(err)
	}
	defer lock.Close()
	if content := f.read(a.shard); content.unidentified != "" || !content.abandoned() {
		return nil
	}
	a.step("remove the folder")
	return f.remove()
}

// ignoreNotExist returns nil if another process has removed the folder.
func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// exited returns the state of a VM whose QEMU does not run.
func (f folder) exited(launched launch) (instance.State, string) {
	if id, err := boot.ID(); err == nil && id != launched.BootID {
		return instance.Stopped, "the host was restarted"
	}
	reason := "QEMU has exited"
	if text := f.logTail(); text != "" {
		reason += ": " + text
	}
	return instance.Failed, reason
}

// status is the response to query-status
// (https://www.qemu.org/docs/master/interop/qemu-qmp-ref.html).
type status struct {
	Status string `json:"status"`
}

// query asks QEMU for the state of a VM.
func (a *API) query(ctx context.Context, f folder, launched bool) (instance.State, string) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var answer status
	if err := f.execute(ctx, "query-status", &answer); err != nil {
		return a.unanswered(f.id, launched, err)
	}
	a.mu.Lock()
	delete(a.silent, f.id)
	a.mu.Unlock()
	if !launched {
		// The server that has launched the VM was killed before it could write the file.
		if err := f.writeLaunched(); err != nil {
			return instance.Pending, ""
		}
	}
	return stateOf(answer.Status)
}

// unanswered returns the state of a VM whose QEMU does not respond.
func (a *API) unanswered(id string, launched bool, err error) (instance.State, string) {
	if !launched {
		return instance.Pending, ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	since, known := a.silent[id]
	if !known {
		since = time.Now()
		a.silent[id] = since
	}
	if silence := time.Since(since); silence > silenceTimeout {
		return instance.Impaired, fmt.Sprintf("QEMU has not answered for %s: %v", silence.Round(time.Second), err)
	}
	return instance.Running, ""
}

// writeLaunched stores that QEMU has responded.
func (f folder) writeLaunched() error {
	id, err := boot.ID()
	if err != nil {
		return err
	}
	return f.writeJSON(launchedFile, launch{BootID: id})
}

// stateOf converts QEMU's run state to the state of a VM.
func stateOf(status string) (instance.State, string) {
	switch status {
	case "running":
		return instance.Running, ""
	case "prelaunch", "inmigrate":
		return instance.Pending, ""
	case "shutdown":
		return instance.Stopped, "the guest has shut down"
	case "guest-panicked":
		return instance.Failed, "the kernel of the guest has panicked"
	case "internal-error":
		return instance.Failed, "QEMU reports an internal error"
	case "io-error":
		return instance.Impaired, "the machine is paused because the host could not write its disk"
	default:
		return instance.Impaired, "QEMU reports the state " + status
	}
}
