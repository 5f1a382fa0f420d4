// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Texts are the messages of errors in the sources of Proxmox VE, by method and path. The package
// fakepve has extracted them (https://github.com/qisback/fakepve).
type Texts map[string][]Text

// Text is a message. Its variables are in braces.
type Text struct {
	Status  int    `json:"status"`
	Message string `json:"message"`
}

// ReadTexts reads the messages, which the Python packages of make test-moto have. It returns nil if
// they are not on this machine.
func ReadTexts() (Texts, error) {
	path, err := findPackage("fakepve/data/pve-errors.json.gz")
	if path == "" {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", path, err)
	}
	var content struct {
		Errors Texts `json:"errors"`
	}
	if err := json.NewDecoder(unpacked).Decode(&content); err != nil {
		return nil, fmt.Errorf("decode %s: %w", path, err)
	}
	return content.Errors, nil
}

// texts are read once for all tests of a process.
var texts = sync.OnceValues(ReadTexts)

// unlisted matches the messages that functions of many methods have. The list leaves them out.
var unlisted = regexp.MustCompile(strings.Join([]string{
	// https://git.proxmox.com/?p=pve-common.git;a=blob;f=src/PVE/Tools.pm, lock_file_full.
	`^can't lock file '.*' - got timeout$`,
	// https://git.proxmox.com/?p=pve-common.git;a=blob;f=src/PVE/File.pm, file_set_contents.
	`^close \(rename\) atomic file '.*' failed: File exists$`,
	// https://git.proxmox.com/?p=pve-cluster.git;a=blob;f=src/PVE/Cluster.pm, check_node_exists.
	`^no such cluster node '.*'$`,
	// https://git.proxmox.com/?p=pve-storage.git;a=blob;f=src/PVE/Storage/Plugin.pm, activate_volume.
	`^volume '.*' does not exist$`,
	// https://git.proxmox.com/?p=pve-storage.git;a=blob;f=src/PVE/Storage/LVMPlugin.pm, volume_resize.
	`^error resizing volume '.*': .*$`,
	// https://git.proxmox.com/?p=qemu-server.git;a=blob;f=src/PVE/QemuServer.pm, _do_vm_stop.
	`^VM is locked \([a-z]+\)$`,
	// https://git.proxmox.com/?p=pve-access-control.git;a=blob;f=src/PVE/RPCEnvironment.pm, check_full.
	`^Permission check failed \(.*\)$`,
}, "|"))

// Check returns an error if the sources have no such message of a method. Tasks have no status.
func (all Texts) Check(call string, status int, message string) error {
	if unlisted.MatchString(message) {
		return nil
	}
	if !slices.ContainsFunc(all[call], func(known Text) bool {
		return (status == 0 || status == known.Status) && known.pattern().MatchString(message)
	}) {
		return fmt.Errorf("%s: the sources have no message %q with status %d", call, message, status)
	}
	return nil
}

// variable matches a variable of a message.
var variable = regexp.MustCompile(`\\\{[A-Za-z0-9_]+\\\}`)

func (t Text) pattern() *regexp.Regexp {
	return regexp.MustCompile("^(?s:" + variable.ReplaceAllString(regexp.QuoteMeta(t.Message), ".*") + ")$")
}

// taskCalls are the methods that start tasks, by the type of the task.
var taskCalls = map[string]string{
	"qmclone": "POST /nodes/{node}/qemu/{vmid}/clone", "qmconfig": "POST /nodes/{node}/qemu/{vmid}/config",
	"resize": "PUT /nodes/{node}/qemu/{vmid}/resize", "qmstart": "POST /nodes/{node}/qemu/{vmid}/status/start",
	"qmstop": "POST /nodes/{node}/qemu/{vmid}/status/stop", "qmdestroy": "DELETE /nodes/{node}/qemu/{vmid}",
	"imgcopy": "POST /nodes/{node}/storage/{storage}/upload",
	"imgdel":  "DELETE /nodes/{node}/storage/{storage}/content/{volume}",
}

// compareText notes an error of a call that the sources do not have. mu must be locked.
func (s *Server) compareText(m *method, err error) {
	if f, ok := errors.AsType[*failure](err); ok {
		s.note(m.verb+" /"+m.path, f.status, f.message)
	}
}

// compareResult notes the result of a task that the sources do not have. mu must be locked.
func (s *Server) compareResult(t *task) {
	if t.exit != "OK" {
		s.note(taskCalls[t.kind], 0, t.exit)
	}
}

func (s *Server) note(call string, status int, message string) {
	if s.texts == nil || status == http.StatusForbidden {
		return
	}
	if err := s.texts.Check(call, status, message); err != nil {
		s.mistakes = append(s.mistakes, err.Error())
	}
}
