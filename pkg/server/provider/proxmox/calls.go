// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// entry is an item of /cluster/resources
// (https://pve.proxmox.com/pve-docs/api-viewer/#/cluster/resources). Every node reports the
// node and the tags of a virtual machine up to date. Its name and the fields below come from
// the last report of its own node, which may be a minute old. They are missing if the node
// has not reported for long.
type entry struct {
	Type     string  `json:"type"`
	Node     string  `json:"node"`
	VMID     int     `json:"vmid"`
	Tags     string  `json:"tags"`
	Name     string  `json:"name"`
	Status   string  `json:"status"`
	Template flag    `json:"template"`
	Memory   int64   `json:"mem"`
	MaxMem   int64   `json:"maxmem"`
	CPU      float64 `json:"cpu"`
	Storage  string  `json:"storage"`
	Shared   flag    `json:"shared"`
}

// Types of entries.
const (
	typeVM      = "qemu"
	typeNode    = "node"
	typeStorage = "storage"
)

// flag is a boolean that the API encodes as a number.
type flag bool

// UnmarshalJSON reads every number but 0 as true, also in quotes: for Perl, a count is a boolean
// (https://perldoc.perl.org/perlsyn#Truth-and-Falsehood).
func (f *flag) UnmarshalJSON(data []byte) error {
	switch text := strings.Trim(string(data), `"`); text {
	case "true":
		*f = true
	case "", "null", "false":
		*f = false
	default:
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%s is no boolean", text)
		}
		*f = number != 0
	}
	return nil
}

// resources returns the virtual machines, nodes and storages of the cluster.
func (c *client) resources(ctx context.Context) (list []entry, err error) {
	return list, c.get(ctx, "cluster/resources", nil, &list)
}

// member is a node in the status of the cluster, or the cluster itself.
type member struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Online  flag   `json:"online"`
	Quorate flag   `json:"quorate"`
}

// clusterStatus returns the nodes, and the cluster unless it consists of a single node.
func (c *client) clusterStatus(ctx context.Context) (list []member, err error) {
	return list, c.get(ctx, "cluster/status", nil, &list)
}

// permissions returns the privileges of the token on a path. The value says whether the privilege
// also counts for the paths below
// (https://pve.proxmox.com/pve-docs/api-viewer/#/access/permissions).
func (c *client) permissions(ctx context.Context, path string) (propagates map[string]flag, err error) {
	var byPath map[string]map[string]flag
	err = c.get(ctx, "access/permissions", url.Values{"path": {path}}, &byPath)
	return byPath[path], err
}

// vmConfig is the configuration of a virtual machine: texts and numbers by name.
type vmConfig map[string]any

// text returns a value.
func (c vmConfig) text(name string) string {
	switch value := c[name].(type) {
	case nil:
		return ""
	case string:
		return value
	default:
		return fmt.Sprint(value)
	}
}

func vmPath(node string, vmid int, rest ...string) string {
	return strings.Join(append([]string{"nodes", node, typeVM, fmt.Sprint(vmid)}, rest...), "/")
}

// config returns the configuration of a virtual machine.
func (c *client) config(ctx context.Context, node string, vmid int) (config vmConfig, err error) {
	return config, c.get(ctx, vmPath(node, vmid, "config"), nil, &config)
}

// vmStatus is the current status of a virtual machine.
type vmStatus struct {
	Status string `json:"status"`
	QEMU   string `json:"qmpstatus"`
	Lock   string `json:"lock"`
}

// status returns the status of a virtual machine from its node.
func (c *client) status(ctx context.Context, node string, vmid int) (status vmStatus, err error) {
	return status, c.get(ctx, vmPath(node, vmid, "status", "current"), nil, &status)
}

// clone clones a template.
func (c *client) clone(ctx context.Context, node string, template int, form url.Values) (task upid, err error) {
	return task, c.post(ctx, vmPath(node, template, "clone"), form, &task)
}

// configure changes the configuration of a virtual machine.
func (c *client) configure(ctx context.Context, node string, vmid int, form url.Values) (task upid, err error) {
	return task, c.post(ctx, vmPath(node, vmid, "config"), form, &task)
}

// resize enlarges a disk. Older versions do so during the call and return no task.
func (c *client) resize(ctx context.Context, node string, vmid int, disk string, size int64) (task upid, err error) {
	form := url.Values{"disk": {disk}, "size": {fmt.Sprintf("%dM", size>>20)}}
	return task, c.put(ctx, vmPath(node, vmid, "resize"), form, &task)
}

// start and stop change the status of a virtual machine.
func (c *client) start(ctx context.Context, node string, vmid int) (task upid, err error) {
	return task, c.post(ctx, vmPath(node, vmid, "status", "start"), nil, &task)
}

func (c *client) stop(ctx context.Context, node string, vmid int) (task upid, err error) {
	return task, c.post(ctx, vmPath(node, vmid, "status", "stop"), nil, &task)
}

// destroy deletes a virtual machine with its disks, and its entries in the configuration of
// the cluster.
func (c *client) destroy(ctx context.Context, node string, vmid int) (task upid, err error) {
	query := url.Values{"purge": {"1"}, "destroy-unreferenced-disks": {"1"}}
	return task, c.remove(ctx, vmPath(node, vmid), query, &task)
}

// upload stores an image in a storage of a node. It replaces an image of the same name.
func (c *client) upload(ctx context.Context, node, storage, name string, image []byte) (task upid, err error) {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	if err := form.WriteField("content", "iso"); err != nil {
		return "", err
	}
	part, err := form.CreateFormFile("filename", name)
	if err != nil {
		return "", err
	}
	if _, err := part.Write(image); err != nil {
		return "", err
	}
	if err := form.Close(); err != nil {
		return "", err
	}
	path := strings.Join([]string{"nodes", node, typeStorage, storage, "upload"}, "/")
	return task, c.call(ctx, http.MethodPost, path, nil, form.FormDataContentType(), body.Bytes(), &task)
}

// hasImage reports whether a storage contains an ISO image.
func (c *client) hasImage(ctx context.Context, node, volume string) (bool, error) {
	storage, _, _ := strings.Cut(volume, ":")
	var list []struct {
		Volume string `json:"volid"`
	}
	path := strings.Join([]string{"nodes", node, typeStorage, storage, "content"}, "/")
	if err := c.get(ctx, path, url.Values{"content": {"iso"}}, &list); err != nil {
		return false, err
	}
	for _, item := range list {
		if item.Volume == volume {
			return true, nil
		}
	}
	return false, nil
}

// removeVolume deletes a volume of a storage. It returns no task if the volume was deleted
// during the call.
func (c *client) removeVolume(ctx context.Context, node, volume string) (task upid, err error) {
	storage, _, _ := strings.Cut(volume, ":")
	path := strings.Join([]string{"nodes", node, typeStorage, storage, "content", url.PathEscape(volume)}, "/")
	return task, c.remove(ctx, path, nil, &task)
}

// taskStatus is the status of a task.
type taskStatus struct {
	Status string `json:"status"`
	Exit   string `json:"exitstatus"`
}

// upid identifies a task. It is empty if the call has returned no task.
type upid string

// UnmarshalJSON reads null as no task.
func (u *upid) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	*u = ""
	if text != nil {
		*u = upid(*text)
	}
	return nil
}

// node returns the node that runs the task.
func (u upid) node() string {
	parts := strings.Split(string(u), ":")
	if len(parts) < 9 || parts[0] != "UPID" {
		return ""
	}
	return parts[1]
}

// task returns the status of a task.
func (c *client) task(ctx context.Context, task upid) (status taskStatus, err error) {
	return status, c.get(ctx, "nodes/"+task.node()+"/tasks/"+string(task)+"/status", nil, &status)
}

// logLimit is how many lines of a log a call returns at most. The logs of the tasks that the provider
// starts are shorter, except the progress of a long clone.
const logLimit = 5000

// taskLog returns the lines of a task's log.
func (c *client) taskLog(ctx context.Context, task upid) ([]string, error) {
	var list []struct {
		Text string `json:"t"`
	}
	path := "nodes/" + task.node() + "/tasks/" + string(task) + "/log"
	if err := c.get(ctx, path, url.Values{"limit": {fmt.Sprint(logLimit)}}, &list); err != nil {
		return nil, err
	}
	var lines []string
	for _, line := range list {
		if text := strings.TrimSpace(line.Text); text != "" {
			lines = append(lines, text)
		}
	}
	return lines, nil
}

// Types of tasks that the provider searches for.
const (
	taskClone  = "qmclone"
	taskUpload = "imgcopy"
)

// hasTask reports whether a node runs a task of a type.
func (c *client) hasTask(ctx context.Context, node, kind string) (bool, error) {
	var list []struct {
		EndTime int64 `json:"endtime"`
	}
	query := url.Values{"source": {"active"}, "typefilter": {kind}}
	if err := c.get(ctx, "nodes/"+node+"/tasks", query, &list); err != nil {
		return false, err
	}
	for _, task := range list {
		if task.EndTime == 0 {
			return true, nil
		}
	}
	return false, nil
}
