// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"fmt"
	"maps"
	"strings"
)

// vmTask starts a task for a virtual machine, which fails if another one runs for it
// (https://git.proxmox.com/?p=pve-common.git;a=blob;f=src/PVE/Tools.pm, lock_file_full). mu must be
// locked.
func (s *Server) vmTask(r *request, kind string, finish func() string) (any, error) {
	if len(s.running(r.vmid())) > 0 {
		s.conflicts++
		finish = func() string {
			return fmt.Sprintf("can't lock file '/var/lock/qemu-server/lock-%d.conf' - got timeout", r.vmid())
		}
	}
	return s.startTask(r.path["node"], kind, r.vmid(), s.TaskTime, finish)
}

func (s *Server) postConfig(r *request) (any, error) {
	v, err := s.unlocked(r)
	if err != nil {
		return nil, err
	}
	if tags, set := r.form["tags"]; set {
		if err := s.checkTags(v.config["tags"], tags); err != nil {
			return nil, err
		}
	}
	if volume, _, _ := strings.Cut(r.form["ide2"], ","); volume != "" && volume != "none" {
		_, name, _ := strings.Cut(volume, ":iso/")
		if in := s.storageOf(volume, v.node); in == nil || in.isos[name] == nil {
			return nil, failed("volume '%s' does not exist", volume)
		}
	}
	return s.vmTask(r, "qmconfig", func() string {
		maps.Copy(v.config, r.form)
		return "OK"
	})
}

func (s *Server) putResize(r *request) (any, error) {
	v, err := s.unlocked(r)
	if err != nil {
		return nil, err
	}
	name := r.form["disk"]
	drive, _, found := strings.Cut(v.config[name], ",size=")
	if !found {
		return nil, failed("disk '%s' does not exist", name)
	}
	before := v.disks()[name]
	after := (&vm{config: map[string]string{name: drive + ",size=" + r.form["size"]}}).disks()[name]
	if after < before {
		return nil, failed("shrinking disks is not supported")
	}
	return s.vmTask(r, "resize", func() string {
		if !s.storageOf(drive, v.node).allocate(r.vmid(), after-before) {
			return fmt.Sprintf("error resizing volume '/dev/pve/vm-%d-disk-0':   Insufficient free space: 1024 extents needed, but only 256 available", r.vmid())
		}
		v.config[name] = drive + ",size=" + r.form["size"]
		return "OK"
	})
}

// postStart starts a task, which looks at the lock and the status
// (https://git.proxmox.com/?p=qemu-server.git;a=blob;f=src/PVE/QemuServer.pm, vm_start). So does the
// task of postStop.
func (s *Server) postStart(r *request) (any, error) {
	v, err := s.vm(r)
	if err != nil {
		return nil, err
	}
	return s.vmTask(r, "qmstart", func() string {
		switch {
		case v.lock != "":
			return isLocked(v.lock)
		case v.status != "stopped":
			return fmt.Sprintf("VM %d already running", r.vmid())
		}
		return s.boot(r.vmid(), v)
	})
}

// qemuFailed is the result of a task whose QEMU has printed why it ends.
const qemuFailed = "\nstart failed: QEMU exited with code 1"

// boot starts a virtual machine, if its node has the needed resources. mu must be locked.
func (s *Server) boot(vmid int, v *vm) string {
	host := s.nodes[v.node]
	_, bridge, _ := strings.Cut(v.config["net0"], "bridge=")
	bridge, _, _ = strings.Cut(bridge, ",")
	if bridge != "" && !host.bridges[bridge] {
		// https://github.com/tteck/Proxmox/issues/147 shows such a log.
		return fmt.Sprintf("bridge '%s' does not exist\nkvm: -netdev type=tap,id=net0,ifname=tap%di0: network script /usr/libexec/qemu-server/pve-bridge failed with status 512", bridge, vmid) + qemuFailed
	}
	if !s.Idle && s.memoryOf(v.node)+host.used+v.memory() > host.memory {
		return "kvm: cannot set up guest memory 'pc.ram': Cannot allocate memory" + qemuFailed
	}
	made := Machine{VMID: vmid, Name: v.config["name"], Node: v.node}
	if in, name := s.iso(v); in != nil {
		if in.isos[name] == nil {
			return fmt.Sprintf("volume '%s' does not exist", v.config["ide2"])
		}
		made.Userdata = in.isos[name]
	}
	v.status = "running"
	s.started = append(s.started, made)
	return "OK"
}

func (s *Server) postStop(r *request) (any, error) {
	v, err := s.vm(r)
	if err != nil {
		return nil, err
	}
	return s.vmTask(r, "qmstop", func() string {
		if v.lock != "" && v.status != "stopped" {
			return isLocked(v.lock)
		}
		v.status = "stopped"
		return "OK"
	})
}

// deleteVM refuses a machine that is protected or runs, and its task one that is locked
// (https://git.proxmox.com/?p=qemu-server.git;a=blob;f=src/PVE/API2/Qemu.pm, destroy_vm).
func (s *Server) deleteVM(r *request) (any, error) {
	v, err := s.vm(r)
	switch {
	case err != nil:
		return nil, err
	case v.config["protection"] == "1":
		return nil, failed("can't remove VM %d - protection mode enabled", r.vmid())
	case v.status != "stopped":
		return nil, failed("VM %d is running - destroy failed", r.vmid())
	}
	return s.vmTask(r, "qmdestroy", func() string {
		if v.lock != "" {
			return isLocked(v.lock)
		}
		s.free(r.vmid())
		delete(s.vms, r.vmid())
		return "OK"
	})
}
