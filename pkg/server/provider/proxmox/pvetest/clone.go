// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// temporaryNotes are the notes of a virtual machine while it is cloned.
const temporaryNotes = "qmclone temporary file"

// postClone claims a VMID and starts the task that clones. Until its first disk is cloned,
// the virtual machine has no name. Until the last one is, it is locked.
func (s *Server) postClone(r *request) (any, error) {
	template, err := s.unlocked(r)
	if err != nil {
		return nil, err
	}
	newID, _ := strconv.Atoi(r.form["newid"]) // was validated
	if taken := s.vms[newID]; taken != nil {
		return s.refuseTaken(r, newID, taken)
	}
	target, err := s.cloneTarget(r, template)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	key := r.path["vmid"] + "/" + r.form["storage"]
	if s.isCloning(key) {
		s.conflicts++
		return s.startTask(r.path["node"], "qmclone", r.vmid(), s.TaskTime, func() string {
			return "can't lock file '/var/lock/qemu-server/lock-" + r.path["vmid"] + ".conf' - got timeout"
		})
	}
	v := &vm{node: r.path["node"], lock: "clone", status: "stopped", pool: r.form["pool"], visible: now.Add(s.SyncDelay), config: map[string]string{"description": temporaryNotes}}
	s.vms[newID] = v
	upid, err := s.startTask(r.path["node"], "qmclone", r.vmid(), s.CloneTime, func() string {
		return s.finishClone(r, newID, v, r.cloneConfig(template), target)
	})
	started := s.tasks[len(s.tasks)-1]
	started.key = key
	if disks := slices.Sorted(maps.Keys(template.disks())); len(disks) > 1 {
		started.middle = now.Add(s.CloneTime / time.Duration(len(disks)))
		started.halfway = func() {
			v.config = r.cloneConfig(template)
			for _, later := range disks[1:] {
				delete(v.config, later)
			}
		}
	}
	return upid, err
}

// refuseTaken refuses a VMID that another virtual machine has. Only a node that has the virtual
// machine knows that before the task begins. Elsewhere the file system of the cluster refuses to
// create the configuration
// (https://git.proxmox.com/?p=qemu-server.git;a=blob;f=src/PVE/API2/Qemu.pm, clone_vm).
func (s *Server) refuseTaken(r *request, vmid int, taken *vm) (any, error) {
	if taken.node == r.path["node"] {
		return nil, failed("unable to create VM %d: config file already exists", vmid)
	}
	return s.startTask(r.path["node"], "qmclone", r.vmid(), s.TaskTime, func() string {
		return fmt.Sprintf("close (rename) atomic file '/etc/pve/nodes/%s/qemu-server/%d.conf' failed: File exists", r.path["node"], vmid)
	})
}

// isCloning reports whether a task clones the same template to the same storage. mu must be
// locked.
func (s *Server) isCloning(key string) bool {
	return slices.ContainsFunc(s.tasks, func(t *task) bool { return t.exit == "" && t.key == key })
}

// cloneTarget returns the node of the clone, and refuses what its storages do not allow. mu
// must be locked.
func (s *Server) cloneTarget(r *request, template *vm) (string, error) {
	source, target := r.path["node"], r.form["target"]
	if target == "" {
		target = source
	}
	if s.nodes[target] == nil {
		return "", failed("no such cluster node '%s'", target)
	}
	id := r.form["storage"]
	if id != "" && !r.isTrue("full") {
		return "", failed("parameter 'storage' not allowed for linked clones")
	}
	for _, bridge := range template.bridges() {
		if at := "/sdn/zones/localnetwork/" + bridge; !s.has(at, "SDN.Use") {
			return "", &failure{status: http.StatusForbidden, message: "Permission check failed (" + at + ", SDN.Use)"}
		}
	}
	for name := range template.disks() {
		from := s.storageOf(template.config[name], source)
		if target != source && !from.shared {
			return "", failed("can't clone VM to node '%s' (VM uses local storage)", target)
		}
		// A linked clone has its disks in the storages of the template.
		if at := "/storage/" + from.id; id == "" && !s.has(at, "Datastore.AllocateSpace") {
			return "", &failure{status: http.StatusForbidden, message: "Permission check failed (" + at + ", Datastore.AllocateSpace)"}
		}
	}
	if id == "" {
		return target, nil
	}
	to := s.storage(id, target)
	switch {
	case to == nil:
		return "", failed("storage '%s' does not exist", id)
	case target != source && !to.shared:
		return "", failed("can't clone to non-shared storage '%s'", id)
	}
	return target, nil
}

// cloneConfig returns the configuration of a clone: the configuration of the template,
// including tags, with another name and other notes.
func (r *request) cloneConfig(template *vm) map[string]string {
	config := maps.Clone(template.config)
	delete(config, "template")
	config["name"], config["description"] = r.form["name"], r.form["description"]
	if config["name"] == "" {
		config["name"] = "Copy-of-VM-" + r.path["vmid"]
	}
	return config
}

// finishClone gives a virtual machine its configuration and unlocks it, or removes it if
// there is no space.
func (s *Server) finishClone(r *request, vmid int, v *vm, config map[string]string, target string) string {
	for name, size := range (&vm{config: config}).disks() {
		storage := s.storageOf(config[name], r.path["node"])
		if id := r.form["storage"]; id != "" {
			storage = s.storage(id, target)
		}
		if r.isTrue("full") && !storage.allocate(vmid, size) {
			s.free(vmid)
			delete(s.vms, vmid)
			return "qemu-img: error while writing at byte 1073741824: No space left on device\n" +
				"clone failed: copy failed: command '/usr/bin/qemu-img convert' failed: exit code 1"
		}
	}
	v.config, v.lock, v.node = config, "", target
	if target != r.path["node"] {
		v.visible, v.from, v.shown, v.reported = time.Now().Add(s.SyncDelay), r.path["node"], "clone", nil
	}
	s.made = append(s.made, Machine{VMID: vmid, Name: config["name"], Node: target})
	return "OK"
}
