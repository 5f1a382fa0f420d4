// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

const (
	// startTimeout is how long QEMU may take until it responds for the first time.
	startTimeout = time.Minute
	// retryInterval is the time between two attempts to lock a folder or to connect.
	retryInterval = 20 * time.Millisecond
)

// Launch starts the machine of a request, or returns the one that its instance has. QEMU
// starts with the folder locked, and only in a folder where it has not run before, so no
// instance has two.
func (a *API) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	id, err := puidv7.Parse(r.ID)
	if err != nil {
		return cloud.VM{}, err
	}
	boot, err := a.options.Boot.with(r.Args)
	if err != nil {
		return cloud.VM{}, rejectGroup(r.Spec, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	f := a.folders.of(r.ID)
	lock, existing, err := a.claim(ctx, f)
	if err != nil {
		return cloud.VM{}, fmt.Errorf("lock the folder of instance %s: %w", r.ID, err)
	}
	if existing != nil {
		return *existing, nil
	}
	defer lock.Close()
	if err := a.prepare(ctx, f, lock, r.Spec, boot); err != nil {
		return cloud.VM{}, abandon(f, rejectUnlessDone(ctx, r.Spec, err))
	}
	// Another server may lead by now.
	if err := ctx.Err(); err != nil {
		return cloud.VM{}, abandon(f, err)
	}
	return a.run(ctx, f, lock, id, r.Spec, boot)
}

// claim locks the folder for a launch and empties it. If the instance has a machine, it
// returns that.
func (a *API) claim(ctx context.Context, f folder) (lock *os.File, existing *cloud.VM, err error) {
	for {
		if err := a.folders.check(); err != nil {
			return nil, nil, err
		}
		a.step("make the folder")
		if err := f.create(); err != nil {
			return nil, nil, err
		}
		a.step("lock the folder")
		lock, err := f.lock(syscall.LOCK_EX)
		switch {
		case err == nil:
			// A machine that was launched keeps its files, even if it does not run.
			if _, err := os.Stat(f.file(launchedFile)); errors.Is(err, fs.ErrNotExist) {
				if err := f.clean(); err != nil {
					lock.Close()
					return nil, nil, err
				}
				return lock, nil, nil
			}
			lock.Close()
		case !errors.Is(err, errLocked) && !errors.Is(err, fs.ErrNotExist):
			return nil, nil, err
		}
		m, exists, err := a.inspect(ctx, f)
		if err != nil {
			return nil, nil, err
		}
		if _, err := os.Stat(f.file(launchedFile)); err == nil && exists {
			return nil, &m, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(retryInterval):
		}
	}
}

// prepare writes the files of a machine.
func (a *API) prepare(ctx context.Context, f folder, lock *os.File, spec provider.Spec, b Boot) error {
	for _, path := range b.files() {
		if _, err := os.Stat(path); err != nil {
			return err
		}
	}
	a.step("write the identity")
	if err := a.reserve(f, spec); err != nil {
		return err
	}
	a.step("write the userdata")
	if err := f.writeUserdata(spec.Userdata); err != nil {
		return err
	}
	if b.Image == "" {
		return nil
	}
	a.step("create the disk")
	return a.createDisk(ctx, f, lock, b)
}

// run starts QEMU and waits until it responds.
func (a *API) run(ctx context.Context, f folder, lock *os.File, id puidv7.ID, spec provider.Spec, b Boot) (cloud.VM, error) {
	a.step("start QEMU")
	exited, err := a.start(f, lock, a.options.commandLine(id, spec.Type, spec.Subnet, b, fitsSMBIOS(spec.Userdata)))
	if err != nil {
		return cloud.VM{}, abandon(f, rejectStart(spec, err))
	}
	a.step("wait for QEMU")
	for {
		var answer status
		err := f.execute(ctx, "query-status", &answer)
		select {
		case <-exited:
			// It has exited before it was a machine.
			return cloud.VM{}, abandon(f, rejectOutput(spec, f.logTail()))
		default:
		}
		if err == nil {
			a.step("write that it was launched")
			if err := f.writeLaunched(); err != nil {
				return cloud.VM{}, err
			}
			a.step("return the machine")
			m := newIdentity(a.shard, spec).machine()
			m.State, m.Reason = stateOf(answer.Status)
			return m, nil
		}
		select {
		case <-ctx.Done():
			return cloud.VM{}, fmt.Errorf("QEMU does not answer: %w", errors.Join(ctx.Err(), err))
		case <-exited:
		case <-time.After(retryInterval):
		}
	}
}

// abandon removes the folder of a machine that does not exist.
func abandon(f folder, err error) error {
	if removal := f.remove(); removal != nil {
		return errors.Join(err, removal)
	}
	return err
}

// rejectUnlessDone returns the rejection of a request whose files could not be written,
// unless there was no time to do so.
func rejectUnlessDone(ctx context.Context, spec provider.Spec, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if _, rejected := errors.AsType[*cloud.Rejection](err); rejected {
		return err
	}
	return rejectGroup(spec, err)
}

// rejectGroup rejects what the arguments and images of a group cause.
func rejectGroup(spec provider.Spec, err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Group: spec.Group}, Err: err}
}

// rejectStart rejects a request because there is no QEMU.
func rejectStart(spec provider.Spec, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return &cloud.Rejection{Err: err}
	}
	return &cloud.Rejection{Scope: cloud.Scope{Type: spec.Type.Name, Subnet: spec.Subnet}, Err: err}
}

// rejectOutput rejects a request because QEMU has exited, with what it has written.
func rejectOutput(spec provider.Spec, output string) error {
	rejection := &cloud.Rejection{
		Scope: cloud.Scope{Group: spec.Group, Type: spec.Type.Name, Subnet: spec.Subnet},
		Err:   fmt.Errorf("QEMU has exited: %s", output),
	}
	has := func(text string) bool { return strings.Contains(strings.ToLower(output), text) }
	switch {
	case has("cannot allocate memory"), has("cannot set up guest memory"):
		rejection.Scope = cloud.Scope{Type: spec.Type.Name, Subnet: spec.Subnet}
		rejection.Err = fmt.Errorf("%w: %w", provider.OutOfCapacity("no memory for instance type %s", spec.Type.Name), rejection.Err)
	case has("kvm"):
		rejection.Scope = cloud.Scope{}
	case has("bridge"):
		rejection.Scope = cloud.Scope{Subnet: spec.Subnet}
	}
	return rejection
}
