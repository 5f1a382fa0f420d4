// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/nocloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

const (
	// startTimeout is how long QEMU may take until it responds for the first time.
	startTimeout = time.Minute
	// retryInterval is the time between two attempts to lock a folder or to connect.
	retryInterval = 20 * time.Millisecond
)

// Launch starts the VM of a request, or returns the existing VM of its instance. QEMU starts
// only while the folder is locked, and only in a folder where it has not run before, so no
// instance has two VMs.
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

// claim locks the folder for a launch and empties it. If the instance already has a VM, it
// returns the VM instead.
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
			// A launched VM keeps its files even if it does not run.
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
		vm, exists, err := a.inspect(ctx, f)
		if err != nil {
			return nil, nil, err
		}
		if _, err := os.Stat(f.file(launchedFile)); err == nil && exists {
			return nil, &vm, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(retryInterval):
		}
	}
}

// prepare writes the files of a VM.
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
			// QEMU has exited before it had responded, so there is no VM.
			return cloud.VM{}, abandon(f, rejectOutput(spec, f.logTail()))
		default:
		}
		if err == nil {
			a.step("write that it was launched")
			if err := f.writeLaunched(); err != nil {
				return cloud.VM{}, err
			}
			a.step("return the machine")
			vm := newIdentity(a.shard, spec).vm()
			vm.State, vm.Reason = stateOf(answer.Status)
			return vm, nil
		}
		select {
		case <-ctx.Done():
			return cloud.VM{}, fmt.Errorf("QEMU does not answer: %w", errors.Join(ctx.Err(), err))
		case <-exited:
		case <-time.After(retryInterval):
		}
	}
}

// abandon removes the folder of a launch that has failed.
func abandon(f folder, err error) error {
	if removal := f.remove(); removal != nil {
		return errors.Join(err, removal)
	}
	return err
}

// rejectUnlessDone rejects a request whose files could not be written. If ctx is done, the
// cause is a lack of time, and it returns the error itself.
func rejectUnlessDone(ctx context.Context, spec provider.Spec, err error) error {
	if ctx.Err() != nil {
		return err
	}
	if _, rejected := errors.AsType[*cloud.Rejection](err); rejected {
		return err
	}
	return rejectGroup(spec, err)
}

// rejectGroup rejects the requests of a group, whose arguments or images have caused an
// error.
func rejectGroup(spec provider.Spec, err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Group: spec.Group}, Err: err}
}

// rejectStart rejects a request because QEMU could not be started.
func rejectStart(spec provider.Spec, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return &cloud.Rejection{Err: err}
	}
	return &cloud.Rejection{Scope: cloud.Scope{Type: spec.Type.Name, Subnet: spec.Subnet}, Err: err}
}

// rejectOutput rejects a request because QEMU has exited. The output explains why.
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

// image has the facts from the header of a disk image.
type image struct {
	format string
	size   int64
}

// readImage returns the format and the virtual size of an image. An image that is not qcow2
// counts as raw. This is safe, because the administrator has written it, not a guest.
func readImage(path string) (image, error) {
	file, err := os.Open(path)
	if err != nil {
		return image{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return image{}, err
	}
	header := make([]byte, 32)
	_, err = io.ReadFull(file, header)
	if err == nil && strings.HasPrefix(string(header), "QFI\xfb") {
		return image{format: "qcow2", size: int64(binary.BigEndian.Uint64(header[24:]))}, nil
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return image{}, fmt.Errorf("read image %s: %w", path, err)
	}
	return image{format: "raw", size: info.Size()}, nil
}

// createDisk creates the overlay disk of a VM. The image tool inherits the lock: if this
// process is killed, no other process empties the folder before the tool has exited.
func (a *API) createDisk(ctx context.Context, f folder, lock *os.File, b Boot) error {
	base, err := readImage(b.Image)
	if err != nil {
		return err
	}
	size := base.size
	if b.DiskSize != "" {
		wanted, err := parseSize(b.DiskSize)
		if err != nil {
			return fmt.Errorf("disk_size %s: %w", b.DiskSize, err)
		}
		size = max(size, wanted.Value())
	}
	cmd := exec.CommandContext(ctx, a.options.ImageTool, "create", "-q", "-f", "qcow2",
		"-F", base.format, "-b", b.Image, diskFile, strconv.FormatInt(size, 10))
	cmd.Dir, cmd.Env, cmd.ExtraFiles = f.path, environment(), []*os.File{lock}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("create the disk of instance %s: %w: %s", f.id, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// environment returns the environment of programs. The server's own environment has secrets.
func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
}

// Credential is the name of the system credential with the userdata, which systemd reads from
// SMBIOS (https://systemd.io/CREDENTIALS/).
const Credential = "nstance.userdata"

const credentialPrefix = "io.systemd.credential.binary:" + Credential + "="

// maxSMBIOS is the largest credential in SMBIOS. All tables together can have 64 KiB.
const maxSMBIOS = 32 << 10

// writeUserdata writes the files from which the guest reads its userdata.
func (f folder) writeUserdata(userdata []byte) error {
	image, err := nocloud.New(f.id, userdata)
	if err != nil {
		return err
	}
	if err := f.write(seedFile, image); err != nil {
		return err
	}
	if !fitsSMBIOS(userdata) {
		return nil
	}
	return f.write(smbiosFile, []byte(credentialPrefix+base64.StdEncoding.EncodeToString(userdata)))
}

// fitsSMBIOS reports whether the userdata is small enough for SMBIOS.
func fitsSMBIOS(userdata []byte) bool {
	return len(credentialPrefix)+base64.StdEncoding.EncodedLen(len(userdata)) <= maxSMBIOS
}
