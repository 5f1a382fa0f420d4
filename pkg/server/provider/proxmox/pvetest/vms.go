// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// vm is a virtual machine.
type vm struct {
	node     string
	config   map[string]string
	lock     string
	template bool
	status   string
	pool     string
	// visible is when other nodes know of it, or that it was moved from a node, and shown the lock that
	// they show until then.
	visible     time.Time
	from, shown string
	// reported is the last report of its node, or nil.
	reported *reported
}

// reported is a node's report about a virtual machine.
type reported struct {
	at           time.Time
	name, status string
	template     bool
	memory       int64
}

// Machine is a virtual machine that was cloned or started.
type Machine struct {
	VMID int
	Name string
	Node string
	// Userdata is the content of the disk with the userdata when it was started.
	Userdata []byte
}

// entry returns it as lists show it.
func (v *vm) entry(vmid int, now time.Time) map[string]any {
	entry := map[string]any{"type": "qemu", "id": fmt.Sprintf("qemu/%d", vmid), "vmid": vmid, "node": v.node, "status": "unknown"}
	if now.Before(v.visible) {
		entry["node"], entry["lock"] = v.from, v.shown
		return entry
	}
	if v.config["tags"] != "" {
		entry["tags"] = v.config["tags"]
	}
	if v.lock != "" {
		entry["lock"] = v.lock
	}
	if r := v.reported; r != nil && now.Sub(r.at) < reportAge {
		entry["status"], entry["template"], entry["maxmem"] = r.status, boolNumber(r.template), r.memory
		if r.name != "" {
			entry["name"] = r.name
		}
	}
	return entry
}

// memory returns its bytes of memory.
func (v *vm) memory() int64 {
	n, _ := strconv.ParseInt(v.config["memory"], 10, 64) // empty while it is cloned
	return n << 20
}

// units are the units of disk sizes, by the number of bits that they shift.
var units = map[string]int{"K": 10, "M": 20, "G": 30}

// disks returns the bytes of its disks, by name.
func (v *vm) disks() map[string]int64 {
	sizes := map[string]int64{}
	for name, drive := range v.config {
		if _, text, found := strings.Cut(drive, ",size="); found {
			digits := strings.TrimRight(text, "KMG")
			n, _ := strconv.ParseInt(digits, 10, 64) // written by this package
			sizes[name] = n << units[text[len(digits):]]
		}
	}
	return sizes
}

// bridges returns the bridges of its network interfaces.
func (v *vm) bridges() []string {
	var all []string
	for name, value := range v.config {
		if _, bridge, found := strings.Cut(value, "bridge="); found && strings.HasPrefix(name, "net") {
			bridge, _, _ = strings.Cut(bridge, ",")
			all = append(all, bridge)
		}
	}
	return all
}

// AddTemplate adds a template with a disk in a storage, and returns a function that changes
// its configuration.
func (s *Server) AddTemplate(vmid int, node, name, storage string, sizeGiB int) (set func(name, value string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &vm{node: node, template: true, status: "stopped", config: map[string]string{
		"name": name, "memory": "512", "template": "1", "boot": "order=scsi0", "tags": "golden",
		"scsi0": fmt.Sprintf("%s:base-%d-disk-0,size=%dG", storage, vmid, sizeGiB),
	}}
	s.vms[vmid] = v
	return func(name, value string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		v.config[name] = value
	}
}

// AddVM adds a virtual machine of another user, unless the VMID is used. A clone in progress
// uses its VMID. The new virtual machine is listed after a time.
func (s *Server) AddVM(vmid int, node, name string, hidden time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vms[vmid] != nil {
		return
	}
	s.vms[vmid] = &vm{node: node, status: "running", visible: time.Now().Add(hidden), config: map[string]string{"name": name, "memory": "1024"}}
}

// CopyVM makes a copy of a virtual machine, as a user does, with its tags and notes.
func (s *Server) CopyVM(from, to int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	config := maps.Clone(s.vms[from].config)
	config["name"] = "Copy-of-VM-" + config["name"]
	s.vms[to] = &vm{node: s.vms[from].node, status: "stopped", config: config}
}

// Set changes the configuration of a virtual machine, as a user does.
func (s *Server) Set(vmid int, name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vms[vmid].config[name] = value
}

// SetStatus changes the status of a virtual machine, such as "stopped" or "io-error".
func (s *Server) SetStatus(vmid int, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vms[vmid].status = status
}

// SetLock locks a virtual machine, as a backup does, or unlocks it.
func (s *Server) SetLock(vmid int, lock string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vms[vmid].lock = lock
}

// Remove deletes a virtual machine with its disk, as another client does. Its image stays: images
// of a storage belong to no virtual machine.
func (s *Server) Remove(vmid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.vms[vmid]; v != nil {
		s.free(vmid)
		delete(s.vms, vmid)
	}
}

// Migrate moves a virtual machine to another node, as an administrator does, or says why that is not
// possible: a disk or an image is in a storage of one node
// (https://git.proxmox.com/?p=qemu-server.git;a=blob;f=src/PVE/QemuMigrate.pm, scan_local_volumes).
func (s *Server) Migrate(vmid int, target string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.vms[vmid]
	if in, name := s.iso(v); in != nil && !in.shared {
		return fmt.Errorf("can't migrate local volume '%s:iso/%s': local cdrom image", in.id, name)
	}
	for name := range v.disks() {
		if in := s.storageOf(v.config[name], v.node); !in.shared {
			return fmt.Errorf("can't migrate local disk '%s'", v.config[name])
		}
	}
	v.from, v.shown, v.node, v.visible, v.reported = v.node, "migrate", target, time.Now().Add(s.SyncDelay), nil
	return nil
}

// VMs returns the VMIDs of all virtual machines of a name, or of all virtual machines if the
// name is empty. Clones in progress have no name. Templates do not count.
func (s *Server) VMs(name string) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	var all []int
	for vmid, v := range s.vms {
		if !v.template && (name == "" || v.config["name"] == name) {
			all = append(all, vmid)
		}
	}
	slices.Sort(all)
	return all
}

// Config returns a copy of the configuration of a virtual machine, nil if it does not exist.
func (s *Server) Config(vmid int) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	if v := s.vms[vmid]; v != nil {
		return maps.Clone(v.config)
	}
	return nil
}

// Status returns the node and the status of a virtual machine.
func (s *Server) Status(vmid int) (node, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	if v := s.vms[vmid]; v != nil {
		return v.node, v.status
	}
	return "", ""
}

// Made returns all virtual machines that were ever cloned. Started has a virtual machine once
// for each start.
func (s *Server) Made() []Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	return slices.Clone(s.made)
}

// Started returns all virtual machines that were started, each time.
func (s *Server) Started() []Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	return slices.Clone(s.started)
}

// Conflicts returns how many tasks have failed because another one had a lock.
func (s *Server) Conflicts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conflicts
}

// vm returns the virtual machine in the path as its node knows it. mu must be locked.
func (s *Server) vm(r *request) (*vm, error) {
	v := s.vms[r.vmid()]
	if v == nil || v.node != r.path["node"] || time.Now().Before(v.visible) {
		return nil, failed("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", r.path["node"], r.vmid())
	}
	return v, nil
}

// unlocked returns a virtual machine, and refuses a locked one.
func (s *Server) unlocked(r *request) (*vm, error) {
	v, err := s.vm(r)
	if err == nil && v.lock != "" {
		return nil, failed("%s", isLocked(v.lock))
	}
	return v, err
}

func isLocked(lock string) string { return "VM is locked (" + lock + ")" }

func (s *Server) getConfig(r *request) (any, error) {
	v, err := s.vm(r)
	if err != nil {
		return nil, err
	}
	config := map[string]any{"digest": "0000000000000000000000000000000000000000"}
	for name, value := range v.config {
		config[name] = value
	}
	if v.lock != "" {
		config["lock"] = v.lock
	}
	return config, nil
}

func (s *Server) getStatus(r *request) (any, error) {
	v, err := s.vm(r)
	if err != nil {
		return nil, err
	}
	status := map[string]any{"vmid": r.vmid(), "name": v.config["name"], "status": "running", "qmpstatus": v.status, "ha": map[string]any{"managed": 0}}
	if v.status == "stopped" {
		status["status"] = "stopped"
	}
	if v.lock != "" {
		status["lock"] = v.lock
	}
	return status, nil
}
