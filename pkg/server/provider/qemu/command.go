// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"crypto/sha256"
	"fmt"
	"net"
	"strconv"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/puidv7"
)

// commandLine returns the arguments of QEMU. The machine gets the files of its folder by
// name, since QEMU runs there: a path may have commas, which QEMU gives a meaning, and that
// of a socket must be short.
func (o *Options) commandLine(id puidv7.ID, t provider.InstanceType, subnet string, b Boot, smbios bool) []string {
	bridge := o.Subnets[subnet].Bridge
	args := []string{
		"-name", "guest=" + id.String(),
		"-uuid", id.UUID.String(),
		"-no-user-config", "-nodefaults",
		"-machine", o.Machine,
		"-accel", o.Accel,
		// All that the host has, or all that tcg can do.
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
		// A guest that has shut down or crashed is reported as such.
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
	for _, one := range []struct{ option, value string }{{"-kernel", b.Kernel}, {"-initrd", b.Initrd}, {"-append", b.Append}} {
		if one.value != "" {
			args = append(args, one.option, one.value)
		}
	}
	return args
}

// sandbox returns what QEMU must not do. To connect to a bridge it starts a program that
// has more rights.
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

// macAddress returns the address of an instance: locally administered, and always the
// same.
func macAddress(id puidv7.ID) net.HardwareAddr {
	sum := sha256.Sum256(id.UUID[:])
	return append(net.HardwareAddr{0x02}, sum[:5]...)
}
