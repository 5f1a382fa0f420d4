// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/qemu/qmp"
	"nstance.dev/operator/pkg/server/puidv7"
)

// lockDescriptor is the descriptor of the lock file in QEMU: the first of
// exec.Cmd.ExtraFiles.
const lockDescriptor = 3

// start starts QEMU with the lock of the folder. The returned channel is closed when QEMU has
// exited. QEMU survives this process, because it has its own session. The lock shows that it
// runs.
func (a *API) start(f folder, lock *os.File, args []string) (exited <-chan struct{}, err error) {
	log, err := os.OpenFile(f.file(logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(a.options.Binary, args...)
	cmd.Dir, cmd.Env = f.path, environment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // the reason of a failure is in the log
	}()
	return done, nil
}

// connect connects to the QEMU of a folder. It uses a short path, because the path of a
// socket has at most 107 characters (https://man7.org/linux/man-pages/man7/unix.7.html).
func (f folder) connect(ctx context.Context) (*qmp.Client, error) {
	directory, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	return qmp.Dial(ctx, fmt.Sprintf("/proc/self/fd/%d/%s", directory.Fd(), socketFile))
}

// execute connects to QEMU and sends one command.
func (f folder) execute(ctx context.Context, command string, result any) error {
	client, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Execute(ctx, command, nil, result)
}

// kill kills the QEMU of a folder, even if it does not respond.
func (f folder) kill() error {
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, path := range pids {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil || !f.runs(pid) {
			continue
		}
		if err := f.killProcess(pid); err != nil {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}

// runs reports whether a process is the QEMU of the folder: it runs there and has the lock.
func (f folder) runs(pid int) bool {
	for name, want := range map[string]string{"cwd": f.path, fmt.Sprintf("fd/%d", lockDescriptor): f.file(lockFile)} {
		has, err := os.Stat(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			return false
		}
		if wanted, err := os.Stat(want); err != nil || !os.SameFile(has, wanted) {
			return false
		}
	}
	return true
}

func (f folder) killProcess(pid int) error {
	// The handle stays valid for one process only, even if its id is reused.
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	defer func() { _ = process.Release() }()
	if !f.runs(pid) {
		return nil
	}
	if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// maxReason limits the length of a reason.
const maxReason = 500

// logTail returns the end of QEMU's output.
func (f folder) logTail() string {
	data, err := os.ReadFile(f.file(logFile))
	if err != nil {
		return ""
	}
	text := strings.Join(strings.Fields(string(data)), " ")
	return text[max(0, len(text)-maxReason):]
}

// commandLine returns the command line of QEMU
// (https://www.qemu.org/docs/master/system/invocation.html). It names the files in the folder
// without a path, since QEMU runs there: a path may contain commas, which have a meaning for
// QEMU, and the path of a socket must be short.
func (o *Options) commandLine(id puidv7.ID, t provider.InstanceType, subnet string, b Boot, smbios bool) []string {
	bridge := o.Subnets[subnet].Bridge
	args := []string{
		"-name", "guest=" + id.String(),
		"-uuid", id.UUID.String(),
		"-no-user-config", "-nodefaults",
		"-machine", o.Machine,
		"-accel", o.Accel,
		// All features of the host's processor, or all that tcg can emulate.
		"-cpu", "max",
		"-smp", strconv.Itoa(cpus(t)),
		"-m", fmt.Sprintf("%dM", t.Memory.Value()>>20),
		"-sandbox", sandbox(bridge),
		"-display", "none",
		"-monitor", "none",
		"-chardev", "socket,id=qmp,path=" + socketFile + ",server=on,wait=off",
		"-mon", "chardev=qmp,mode=control",
		"-chardev", "file,id=serial,path=" + serialFile + ",append=on",
		"-serial", "chardev:serial",
		// If a guest shuts down or crashes, QEMU must report this and not exit.
		"-no-shutdown",
		"-action", "panic=pause",
		"-device", "pvpanic-pci",
		"-device", "virtio-rng-pci",
		"-netdev", netdev(bridge),
		"-device", "virtio-net-pci,netdev=net0,mac=" + macAddress(id).String(),
	}
	if b.Image != "" {
		args = append(args,
			"-blockdev", "driver=qcow2,node-name=disk,discard=unmap,file.driver=file,file.filename="+diskFile,
			"-device", "virtio-blk-pci,drive=disk,bootindex=0")
	}
	args = append(args,
		"-blockdev", "driver=raw,node-name=seed,read-only=on,file.driver=file,file.read-only=on,file.filename="+seedFile,
		"-device", "virtio-blk-pci,drive=seed",
		"-smbios", "type=1,serial=ds=nocloud")
	if smbios {
		args = append(args, "-smbios", "type=11,path="+smbiosFile)
	}
	for _, argument := range []struct{ option, value string }{{"-kernel", b.Kernel}, {"-initrd", b.Initrd}, {"-append", b.Append}} {
		if argument.value != "" {
			args = append(args, argument.option, argument.value)
		}
	}
	return args
}

// sandbox returns the seccomp options of QEMU. To connect to a bridge, QEMU starts a helper
// with more privileges.
func sandbox(bridge string) string {
	allowed := "deny"
	if bridge != "" {
		allowed = "allow"
	}
	return fmt.Sprintf("on,obsolete=deny,resourcecontrol=deny,elevateprivileges=%s,spawn=%s", allowed, allowed)
}

func netdev(bridge string) string {
	if bridge == "" {
		return "user,id=net0"
	}
	return "bridge,id=net0,br=" + bridge
}

// cpus returns the number of processors of an instance type.
func cpus(t provider.InstanceType) int {
	return int(max(1, t.CPU.Value()))
}

// macAddress derives a locally administered MAC address from the id of an instance.
func macAddress(id puidv7.ID) net.HardwareAddr {
	sum := sha256.Sum256(id.UUID[:])
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}
