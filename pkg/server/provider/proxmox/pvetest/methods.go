// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"net/http"
	"strings"
)

// methods are those that the provider calls.
var methods = []*method{
	{verb: http.MethodGet, path: "version", handle: (*Server).getVersion},
	{verb: http.MethodGet, path: "access/permissions", parameters: map[string]parameter{"path": text("/.*")}, handle: (*Server).getPermissions},
	{verb: http.MethodGet, path: "cluster/status", check: always("/", "Sys.Audit"), handle: (*Server).getClusterStatus},
	{
		verb: http.MethodGet, path: "cluster/resources",
		parameters: map[string]parameter{"type": text("vm|storage|node|sdn")},
		handle:     (*Server).getResources,
	},
	{verb: http.MethodGet, path: "nodes/{node}/qemu/{vmid}/config", parameters: map[string]parameter{"current": boolean}, check: onVM("VM.Audit"), handle: (*Server).getConfig},
	{verb: http.MethodGet, path: "nodes/{node}/qemu/{vmid}/status/current", check: onVM("VM.Audit"), handle: (*Server).getStatus},
	{
		verb: http.MethodPost, path: "nodes/{node}/qemu/{vmid}/clone",
		parameters: map[string]parameter{
			"newid": vmID.require(), "name": dnsName, "description": description, "full": boolean,
			"storage": storageID, "target": pathVariables["node"], "pool": text(`[A-Za-z0-9._/-]+`),
		},
		check: checkClone, handle: (*Server).postClone,
	},
	{
		verb: http.MethodPost, path: "nodes/{node}/qemu/{vmid}/config",
		parameters: map[string]parameter{
			"tags":    text(`[a-z0-9_][a-z0-9_\-+.]*(;[a-z0-9_][a-z0-9_\-+.]*)*`),
			"sockets": number(1, 8), "cores": number(1, 512), "memory": number(16, 4<<20),
			"net0":   text(`(virtio|e1000)(=[0-9A-Fa-f:]{17})?,bridge=[A-Za-z0-9_.\-]+(,tag=[0-9]{1,4})?`),
			"ide2":   text(`[^,:]+:iso/[^,/]+\.iso,media=cdrom`),
			"onboot": boolean, "protection": boolean,
		},
		check: checkConfig, handle: (*Server).postConfig,
	},
	{
		verb: http.MethodPut, path: "nodes/{node}/qemu/{vmid}/resize",
		parameters: map[string]parameter{"disk": text(`(scsi|virtio|sata|ide)[0-9]+`).require(), "size": text(`\+?\d+(\.\d+)?[KMGT]?`).require()},
		check:      onVM("VM.Config.Disk"), handle: (*Server).putResize,
	},
	{verb: http.MethodPost, path: "nodes/{node}/qemu/{vmid}/status/start", check: onVM("VM.PowerMgmt"), handle: (*Server).postStart},
	{verb: http.MethodPost, path: "nodes/{node}/qemu/{vmid}/status/stop", check: onVM("VM.PowerMgmt"), handle: (*Server).postStop},
	{
		verb: http.MethodDelete, path: "nodes/{node}/qemu/{vmid}",
		parameters: map[string]parameter{"purge": boolean, "destroy-unreferenced-disks": boolean},
		check:      onVM("VM.Allocate"), handle: (*Server).deleteVM,
	},
	{
		verb: http.MethodPost, path: "nodes/{node}/storage/{storage}/upload",
		parameters: map[string]parameter{"content": text("iso|vztmpl|import").require(), "filename": text(`[^/]+\.(iso|img)`).require()},
		check:      onStorage("Datastore.AllocateTemplate"), handle: (*Server).postUpload,
	},
	{
		verb: http.MethodGet, path: "nodes/{node}/storage/{storage}/content",
		parameters: map[string]parameter{"content": text("images|iso|rootdir|vztmpl|backup|snippets|import"), "vmid": vmID},
		check:      onStorage("Datastore.Audit"), handle: (*Server).getContent,
	},
	{
		verb: http.MethodDelete, path: "nodes/{node}/storage/{storage}/content/{volume}",
		parameters: map[string]parameter{"delay": number(1, 30)},
		check:      onStorage("Datastore.Allocate"), handle: (*Server).deleteContent,
	},
	{
		verb: http.MethodGet, path: "nodes/{node}/tasks",
		parameters: map[string]parameter{"source": text("archive|active|all"), "typefilter": text(`\S+`), "vmid": vmID, "limit": number(0, 1<<30)},
		handle:     (*Server).getTasks,
	},
	{verb: http.MethodGet, path: "nodes/{node}/tasks/{upid}/status", handle: (*Server).getTaskStatus},
}

// always needs one privilege.
func always(path, privilege string) func(*request) map[string]string {
	return func(*request) map[string]string { return map[string]string{path: privilege} }
}

func onVM(privileges ...string) func(*request) map[string]string {
	return func(r *request) map[string]string {
		return map[string]string{"/vms/" + r.path["vmid"]: strings.Join(privileges, ",")}
	}
}

func onStorage(privilege string) func(*request) map[string]string {
	return func(r *request) map[string]string {
		return map[string]string{"/storage/" + r.path["storage"]: privilege}
	}
}

func checkClone(r *request) map[string]string {
	needed := map[string]string{"/vms/" + r.path["vmid"]: "VM.Clone", "/vms/" + r.form["newid"]: "VM.Allocate"}
	if storage := r.form["storage"]; storage != "" {
		needed["/storage/"+storage] = "Datastore.AllocateSpace"
	}
	return needed
}

// configPrivileges are those that the values of a configuration need.
var configPrivileges = map[string]string{
	"tags": "VM.Config.Options", "onboot": "VM.Config.Options", "protection": "VM.Config.Options",
	"sockets": "VM.Config.CPU", "cores": "VM.Config.CPU", "memory": "VM.Config.Memory",
	"net0": "VM.Config.Network", "ide2": "VM.Config.CDROM",
}

func checkConfig(r *request) map[string]string {
	path := "/vms/" + r.path["vmid"]
	needed := map[string]string{}
	for name := range r.form {
		needed[path] += configPrivileges[name] + ","
	}
	if _, bridge, found := strings.Cut(r.form["net0"], "bridge="); found {
		bridge, _, _ = strings.Cut(bridge, ",")
		needed["/sdn/zones/localnetwork/"+bridge] = "SDN.Use"
	}
	if volume := r.form["ide2"]; volume != "" {
		storage, _, _ := strings.Cut(volume, ":")
		needed["/storage/"+storage] = "Datastore.Audit"
	}
	return needed
}
