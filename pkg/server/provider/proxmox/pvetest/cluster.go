// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"fmt"
	"slices"
	"time"
)

// node is a node of the cluster.
type node struct {
	online  bool
	memory  int64
	used    int64
	cpu     float64
	bridges map[string]bool
	// reported is when it last reported its virtual machines.
	reported time.Time
}

// reportAge is how long a report counts.
const reportAge = 5 * time.Minute

// SetOnline turns a node on or off. Its running tasks end, and tasks that clone leave a
// partial virtual machine, as after a loss of power.
func (s *Server) SetOnline(name string, online bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	s.nodes[name].online = online
	if online {
		return
	}
	for _, t := range s.tasks {
		if t.node == name && t.exit == "" {
			t.exit, t.finish = "unexpected status", nil
		}
	}
}

// SetCloneTime sets how long clones take that begin from now on.
func (s *Server) SetCloneTime(duration time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.CloneTime = duration
}

// SetQuorum gives the cluster a quorum or takes it away.
func (s *Server) SetQuorum(quorum bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noQuorum = !quorum
}

// SetLoad sets the usage of a node: bytes of memory, and a share of its processors.
func (s *Server) SetLoad(name string, memory int64, cpu float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[name].used, s.nodes[name].cpu = memory, cpu
}

// SetMemory sets how much memory a node has.
func (s *Server) SetMemory(name string, memory int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[name].memory = memory
}

// AddBridge adds a bridge to all nodes.
func (s *Server) AddBridge(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, node := range s.nodes {
		node.bridges[name] = true
	}
}

// report makes the nodes send the reports that are due. mu must be locked.
func (s *Server) report(now time.Time) {
	for name, n := range s.nodes {
		if !n.online || now.Sub(n.reported) < s.ReportInterval {
			continue
		}
		n.reported = now
		for _, vm := range s.vms {
			if vm.node == name {
				vm.reported = &reported{at: now, name: vm.config["name"], status: vm.status, template: vm.template, memory: vm.memory()}
			}
		}
	}
}

func (s *Server) getClusterStatus(*request) (any, error) {
	quorate := 1
	if s.noQuorum {
		quorate = 0
	}
	list := []map[string]any{}
	if !s.Standalone {
		list = append(list, map[string]any{"type": "cluster", "id": "cluster", "name": "test", "quorate": quorate, "nodes": len(s.nodes)})
	}
	for name, node := range s.nodes {
		online := 0
		if node.online {
			online = 1
		}
		list = append(list, map[string]any{"type": "node", "id": "node/" + name, "name": name, "online": online})
	}
	return list, nil
}

// getResources returns what all nodes know: which virtual machines there are with their
// tags and locks, and what their nodes have reported.
func (s *Server) getResources(r *request) (any, error) {
	now, list := time.Now(), []map[string]any{}
	wants := func(kind string) bool { return r.form["type"] == "" || r.form["type"] == kind }
	for name, node := range s.nodes {
		if !wants("node") {
			break
		}
		entry := map[string]any{"type": "node", "id": "node/" + name, "node": name, "status": "offline"}
		if node.online {
			entry["status"], entry["maxmem"], entry["mem"], entry["cpu"] = "online", node.memory, node.used+s.memoryOf(name), node.cpu
		}
		list = append(list, entry)
	}
	for _, st := range s.storages {
		for _, name := range s.nodesOf(st) {
			if wants("storage") {
				list = append(list, map[string]any{
					"type": "storage", "id": "storage/" + name + "/" + st.id, "node": name, "storage": st.id,
					"shared": boolNumber(st.shared), "status": "available", "content": "images,iso",
				})
			}
		}
	}
	for vmid, guest := range s.vms {
		if wants("vm") && s.has(fmt.Sprintf("/vms/%d", vmid), "VM.Audit") && (guest.from != "" || !now.Before(guest.visible)) {
			list = append(list, guest.entry(vmid, now))
		}
	}
	slices.SortFunc(list, func(a, b map[string]any) int { return compareText(a["id"], b["id"]) })
	return list, nil
}

// memoryOf returns the memory of the virtual machines that run on a node. mu must be locked.
func (s *Server) memoryOf(name string) int64 {
	var sum int64
	for _, guest := range s.vms {
		if guest.node == name && guest.status != "stopped" && !s.Idle {
			sum += guest.memory()
		}
	}
	return sum
}

func boolNumber(b bool) int {
	if b {
		return 1
	}
	return 0
}

func compareText(a, b any) int {
	x, y := a.(string), b.(string)
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}
