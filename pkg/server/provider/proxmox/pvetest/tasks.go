// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// task runs for some time and then has its effect.
type task struct {
	upid, node, kind, id string
	vmid, number         int
	start, end           time.Time
	// halfway makes an effect in the middle of the task, unless it is nil.
	halfway func()
	middle  time.Time
	// finish makes the effect and returns the result, after the lines of the log.
	finish func() string
	// exit is the result, empty while the task runs. log has what programs have printed before, which
	// the result does not have
	// (https://git.proxmox.com/?p=pve-common.git;a=blob;f=src/PVE/Tools.pm, run_command).
	exit string
	log  []string
	// key is the template and the storage of a clone.
	key string
}

// startTask starts a task. mu must be locked.
func (s *Server) startTask(node, kind string, vmid int, takes time.Duration, finish func() string) (any, error) {
	s.taskNumber++
	now := time.Now()
	id := ""
	if vmid != 0 {
		id = fmt.Sprint(vmid)
	}
	t := &task{
		upid: fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", node, s.taskNumber, s.taskNumber, now.Unix(), kind, id, tokenUser),
		node: node, kind: kind, id: id, vmid: vmid, number: s.taskNumber, start: now, end: now.Add(takes), finish: finish,
	}
	s.tasks = append(s.tasks, t)
	return t.upid, nil
}

// settle ends the tasks whose time is over, and makes the reports that are due. mu must be
// locked.
func (s *Server) settle(now time.Time) {
	var due []*task
	for _, t := range s.tasks {
		if t.exit == "" && t.halfway != nil && !now.Before(t.middle) {
			t.halfway()
			t.halfway = nil
		}
		if t.exit == "" && !now.Before(t.end) {
			due = append(due, t)
		}
	}
	slices.SortStableFunc(due, func(a, b *task) int { return a.end.Compare(b.end) })
	for _, t := range due {
		lines := strings.Split(t.finish(), "\n")
		t.exit, t.log = lines[len(lines)-1], lines[:len(lines)-1]
		s.compareResult(t)
	}
	s.report(now)
}

// running returns the tasks that run for a virtual machine. mu must be locked.
func (s *Server) running(vmid int) []*task {
	return slices.DeleteFunc(slices.Clone(s.tasks), func(t *task) bool { return t.exit != "" || t.vmid != vmid })
}

// entry returns what lists and the status of a task have in common.
func (t *task) entry() map[string]any {
	return map[string]any{
		"upid": t.upid, "node": t.node, "type": t.kind, "id": t.id, "user": tokenUser, "starttime": t.start.Unix(), "pid": t.number, "pstart": t.number,
	}
}

func (s *Server) getTaskStatus(r *request) (any, error) {
	t, err := s.task(r)
	if err != nil {
		return nil, err
	}
	status := t.entry()
	status["status"] = "running"
	if t.exit != "" {
		status["status"], status["exitstatus"] = "stopped", t.exit
	}
	return status, nil
}

// getTaskLog returns the lines of a log. The last one repeats the result
// (https://pve.proxmox.com/pve-docs/api-viewer/#/nodes/{node}/tasks/{upid}/log).
func (s *Server) getTaskLog(r *request) (any, error) {
	t, err := s.task(r)
	if err != nil {
		return nil, err
	}
	lines := slices.Clone(t.log)
	switch t.exit {
	case "":
	case "OK":
		lines = append(lines, "TASK OK")
	default:
		lines = append(lines, "TASK ERROR: "+t.exit)
	}
	limit := 50
	if text := r.form["limit"]; text != "" {
		limit, _ = strconv.Atoi(text) // was validated
	}
	list := []map[string]any{}
	for n, text := range lines[:min(limit, len(lines))] {
		list = append(list, map[string]any{"n": n + 1, "t": text})
	}
	return list, nil
}

// task returns the task in the path. mu must be locked.
func (s *Server) task(r *request) (*task, error) {
	for _, t := range s.tasks {
		if t.upid == r.path["upid"] && t.node == r.path["node"] {
			return t, nil
		}
	}
	// https://git.proxmox.com/?p=pve-manager.git;a=blob;f=PVE/API2/Tasks.pm, read_task_status.
	return nil, &failure{status: http.StatusBadRequest, message: "Parameter verification failed.", parameters: map[string]string{"upid": "no such task"}}
}

func (s *Server) getTasks(r *request) (any, error) {
	list := []map[string]any{}
	for _, t := range s.tasks {
		if t.node != r.path["node"] || r.form["source"] == "active" && t.exit != "" ||
			r.form["typefilter"] != "" && r.form["typefilter"] != t.kind {
			continue
		}
		entry := t.entry()
		if t.exit != "" {
			entry["endtime"], entry["status"] = t.end.Unix(), t.exit
		}
		list = append(list, entry)
	}
	return list, nil
}
