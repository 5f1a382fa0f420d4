// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
)

// allPrivileges returns the privileges that a token of the provider needs.
func allPrivileges() map[string]map[string]bool {
	all := map[string]map[string]bool{}
	for at, names := range map[string]string{
		"/": "Sys.Audit",
		"/vms": "VM.Allocate,VM.Audit,VM.Clone,VM.PowerMgmt,VM.Config.CPU,VM.Config.Memory,VM.Config.Network," +
			"VM.Config.Disk,VM.Config.CDROM,VM.Config.Options",
		"/storage":   "Datastore.Allocate,Datastore.AllocateSpace,Datastore.AllocateTemplate,Datastore.Audit",
		"/sdn/zones": "SDN.Use",
	} {
		all[at] = map[string]bool{}
		for name := range strings.SplitSeq(names, ",") {
			all[at][name] = true
		}
	}
	return all
}

// Grant gives the token a privilege or takes it away.
func (s *Server) Grant(at, privilege string, granted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.privileges[at] == nil {
		s.privileges[at] = map[string]bool{}
	}
	s.privileges[at][privilege] = granted
}

// GrantHere gives the token a privilege on one path and not on the paths below it: the ACL does
// not propagate.
func (s *Server) GrantHere(at, privilege string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.here[at+" "+privilege] = true
}

// SetTagAccess sets which tags users may set who lack Sys.Modify on /: "free", the default,
// "existing", or "none" (https://pve.proxmox.com/pve-docs/datacenter.cfg.5.html, user-tag-access).
func (s *Server) SetTagAccess(access string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tagAccess = access
}

// checkTags refuses tags that the token may not add or remove
// (https://git.proxmox.com/?p=pve-guest-common.git;a=blob;f=src/PVE/GuestHelpers.pm,
// assert_tag_permissions). mu must be locked.
func (s *Server) checkTags(before, after string) error {
	if s.tagAccess == "" || s.tagAccess == "free" || s.has("/", "Sys.Modify") {
		return nil
	}
	allowed := map[string]bool{}
	if s.tagAccess == "existing" {
		for _, guest := range s.vms {
			for tag := range strings.SplitSeq(guest.config["tags"], ";") {
				allowed[tag] = true
			}
		}
	}
	old, kept := strings.Split(before, ";"), strings.Split(after, ";")
	for _, tag := range slices.Concat(old, kept) {
		if tag != "" && !allowed[tag] && slices.Contains(old, tag) != slices.Contains(kept, tag) {
			return &failure{status: http.StatusForbidden, message: "Permission check failed (/, Sys.Modify for modifying tag '" + tag + "')"}
		}
	}
	return nil
}

// has reports whether the token has a privilege on a path, above it, or on the pool of a
// virtual machine. mu must be locked.
func (s *Server) has(at, privilege string) bool {
	return s.here[at+" "+privilege] || s.inherits(at, privilege)
}

// inherits reports whether the token has a privilege on a path and on the paths below it, or on
// the pool of a virtual machine. mu must be locked.
func (s *Server) inherits(at, privilege string) bool {
	if vmid, err := strconv.Atoi(strings.TrimPrefix(at, "/vms/")); err == nil {
		if v := s.vms[vmid]; v != nil && v.pool != "" && s.has("/pool/"+v.pool, privilege) {
			return true
		}
	}
	for {
		if s.privileges[at][privilege] {
			return true
		}
		if at == "/" {
			return false
		}
		at = path.Dir(at)
	}
}

// authorize refuses a call for which the token lacks a privilege. mu must be locked.
func (s *Server) authorize(m *method, r *request) error {
	if m.check == nil {
		return nil
	}
	for at, names := range m.check(r) {
		for name := range strings.SplitSeq(names, ",") {
			byPool := name == "VM.Allocate" && r.form["pool"] != "" && s.has("/pool/"+r.form["pool"], name)
			if name != "" && !byPool && !s.has(at, name) {
				return &failure{status: http.StatusForbidden, message: "Permission check failed (" + at + ", " + name + ")"}
			}
		}
	}
	return nil
}

func (s *Server) getPermissions(r *request) (any, error) {
	known := map[string]bool{}
	for _, all := range s.privileges {
		for name := range all {
			known[name] = true
		}
	}
	at := r.form["path"]
	if at == "" {
		at = "/"
	}
	for place := range s.here {
		_, name, _ := strings.Cut(place, " ")
		known[name] = true
	}
	// The value says whether the privilege propagates to the paths below
	// (https://pve.proxmox.com/pve-docs/api-viewer/#/access/permissions).
	effective := map[string]int{}
	for name := range known {
		if s.has(at, name) {
			effective[name] = boolNumber(s.inherits(at, name))
		}
	}
	return map[string]any{at: effective}, nil
}

func (*Server) getVersion(*request) (any, error) {
	return map[string]string{"version": "8.4.1", "release": "8.4", "repoid": "2a5fa54a8503f96d"}, nil
}

// getOptions returns the options of the cluster that are not the default
// (https://pve.proxmox.com/pve-docs/api-viewer/#/cluster/options).
func (s *Server) getOptions(*request) (any, error) {
	options := map[string]any{"keyboard": "en-us"}
	if s.tagAccess != "" {
		options["user-tag-access"] = map[string]string{"user-allow": s.tagAccess}
	}
	return options, nil
}
