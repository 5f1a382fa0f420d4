// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"maps"
	"slices"
	"strings"
)

// storage is a storage of one node or of all.
type storage struct {
	id     string
	shared bool
	node   string
	free   int64
	disks  map[int]int64
	isos   map[string][]byte
}

func newStorage(id string, shared bool, node string) *storage {
	return &storage{id: id, shared: shared, node: node, free: 1 << 50, disks: map[int]int64{}, isos: map[string][]byte{}}
}

// allocate takes space for the disk of a virtual machine.
func (s *storage) allocate(vmid int, size int64) bool {
	if size > s.free {
		return false
	}
	s.free -= size
	s.disks[vmid] += size
	return true
}

// storage returns a storage as a node has it, nil if it does not. mu must be locked.
func (s *Server) storage(id, node string) *storage {
	if shared := s.storages[id]; shared != nil {
		return shared
	}
	return s.storages[node+"/"+id]
}

// storageOf returns the storage of a volume. mu must be locked.
func (s *Server) storageOf(volume, node string) *storage {
	id, _, _ := strings.Cut(volume, ":")
	return s.storage(id, node)
}

// nodesOf returns the nodes that have a storage. mu must be locked.
func (s *Server) nodesOf(st *storage) []string {
	if !st.shared {
		return []string{st.node}
	}
	return slices.Sorted(maps.Keys(s.nodes))
}

// SetFree sets the free space of a storage that is shared, or of one of a node, NODE/ID.
func (s *Server) SetFree(name string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storages[name].free = bytes
}

// AddStorage adds a storage that is shared, with some free space.
func (s *Server) AddStorage(id string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storages[id] = newStorage(id, true, "")
	s.storages[id].free = bytes
}

// ISOs returns the names of all images in all storages.
func (s *Server) ISOs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, st := range s.storages {
		names = append(names, slices.Collect(maps.Keys(st.isos))...)
	}
	slices.Sort(names)
	return names
}

// Disks returns the VMIDs that have space in a storage.
func (s *Server) Disks() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []int
	for _, st := range s.storages {
		all = append(all, slices.Collect(maps.Keys(st.disks))...)
	}
	slices.Sort(all)
	return all
}

// free returns the space of the disks of a virtual machine. mu must be locked.
func (s *Server) free(vmid int) {
	for _, st := range s.storages {
		st.free += st.disks[vmid]
		delete(st.disks, vmid)
	}
}

// iso returns the image that a virtual machine has in its drive, and its storage. mu must be
// locked.
func (s *Server) iso(v *vm) (in *storage, name string) {
	volume, _, _ := strings.Cut(v.config["ide2"], ",")
	_, name, found := strings.Cut(volume, ":iso/")
	if !found {
		return nil, ""
	}
	return s.storageOf(volume, v.node), name
}

func (s *Server) postUpload(r *request) (any, error) {
	in := s.storage(r.path["storage"], r.path["node"])
	if in == nil {
		return nil, failed("storage '%s' does not exist", r.path["storage"])
	}
	if r.form["content"] != "iso" || r.file == nil {
		return nil, failed("upload of %s is not possible", r.form["content"])
	}
	name, content := r.fileName, r.file
	return s.startTask(r.path["node"], "imgcopy", 0, s.TaskTime, func() string {
		in.isos[name] = content
		return "OK"
	})
}

func (s *Server) getContent(r *request) (any, error) {
	in := s.storage(r.path["storage"], r.path["node"])
	if in == nil {
		return nil, failed("storage '%s' does not exist", r.path["storage"])
	}
	list := []map[string]any{}
	for name, content := range in.isos {
		list = append(list, map[string]any{"volid": in.id + ":iso/" + name, "format": "iso", "size": len(content)})
	}
	return list, nil
}

func (s *Server) deleteContent(r *request) (any, error) {
	volume := r.path["volume"]
	in := s.storage(r.path["storage"], r.path["node"])
	_, name, found := strings.Cut(volume, ":iso/")
	if in == nil || !found {
		return nil, failed("unable to parse volume ID '%s'", volume)
	}
	return s.startTask(r.path["node"], "imgdel", 0, s.TaskTime, func() string {
		// That there is no such image is only in the log
		// (https://git.proxmox.com/?p=pve-storage.git;a=blob;f=src/PVE/Storage/Plugin.pm, free_image).
		delete(in.isos, name)
		return "OK"
	})
}
