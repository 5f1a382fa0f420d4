// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// method is a method of the API. It allows only some of the parameters of the published
// schema.
type method struct {
	verb, path string
	parameters map[string]parameter
	// check returns the privileges that the call needs, by path.
	check  func(*request) map[string]string
	handle func(*Server, *request) (any, error)
}

// parameter is the schema of a parameter.
type parameter struct {
	kind     string
	required bool
	pattern  *regexp.Regexp
	minimum  int
	maximum  int
	longest  int
}

// The kinds of parameters.
const (
	aString  = "string"
	aBoolean = "boolean"
	aNumber  = "integer"
)

func text(pattern string) parameter {
	return parameter{kind: aString, pattern: regexp.MustCompile("^(?:" + pattern + ")$")}
}

func number(minimum, maximum int) parameter {
	return parameter{kind: aNumber, minimum: minimum, maximum: maximum}
}

func (p parameter) require() parameter {
	p.required = true
	return p
}

var (
	boolean     = parameter{kind: aBoolean}
	vmID        = number(100, 999_999_999)
	dnsName     = text(`[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*`)
	storageID   = text(`[a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]`)
	description = parameter{kind: aString, longest: 8192}
)

// pathVariables are the variables in paths.
var pathVariables = map[string]parameter{
	"node":    text(`[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?`),
	"vmid":    vmID,
	"storage": storageID,
	"volume":  text(`.+`),
	"upid":    text(`UPID:[^:]+:[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:[^:\s]+:[^:\s]*:[^:\s]+:`),
}

// find returns the method of a call and the variables in its path.
func find(verb, path string) (*method, map[string]string, error) {
	parts := strings.Split(path, "/")
	for _, m := range methods {
		names := strings.Split(m.path, "/")
		if m.verb != verb || len(names) != len(parts) {
			continue
		}
		variables, matches := map[string]string{}, true
		for n, name := range names {
			value, err := url.PathUnescape(parts[n])
			if variable, is := strings.CutPrefix(name, "{"); is {
				variables[strings.TrimSuffix(variable, "}")] = value
				matches = matches && err == nil
			} else {
				matches = matches && name == value
			}
		}
		if matches {
			return m, variables, nil
		}
	}
	return nil, nil, &failure{status: http.StatusNotImplemented, message: "Method '" + verb + " /" + path + "' not implemented"}
}

// parse reads the parameters of a call and refuses parameters that the schema does not allow.
func parse(r *http.Request, m *method, variables map[string]string) (*request, error) {
	parsed := &request{Request: r, path: variables, form: map[string]string{}}
	problems := map[string]string{}
	for name, value := range variables {
		if problem := pathVariables[name].validate(value); problem != "" {
			problems[name] = problem
		}
	}
	values, err := parsed.read()
	if err != nil {
		return nil, &failure{status: http.StatusBadRequest, message: err.Error()}
	}
	for name, all := range values {
		schema, known := m.parameters[name]
		problem := "property is not defined in schema and the schema does not allow additional properties"
		switch {
		case len(all) != 1:
			problem = "must be one value"
		case known:
			problem = schema.validate(all[0])
		}
		if problem != "" {
			problems[name] = problem
		}
		parsed.form[name] = all[0]
	}
	for name, schema := range m.parameters {
		if _, has := values[name]; schema.required && !has {
			problems[name] = "property is missing and it is not optional"
		}
	}
	if len(problems) > 0 {
		return nil, &failure{status: http.StatusBadRequest, message: "Parameter verification failed.", parameters: problems}
	}
	return parsed, nil
}

// read returns the parameters, which are in the query of a call without a body, or in a
// form.
func (r *request) read() (url.Values, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodDelete {
		return url.ParseQuery(r.URL.RawQuery)
	}
	kind, options, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	if kind == "multipart/form-data" {
		return r.readParts(multipart.NewReader(r.Body, options["boundary"]))
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return url.ParseQuery(string(body))
}

// readParts reads an upload, whose file must be the last part.
func (r *request) readParts(parts *multipart.Reader) (url.Values, error) {
	values := url.Values{}
	for {
		part, err := parts.NextPart()
		if err == io.EOF { //nolint:errorlint // the reader returns it as it is
			return values, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, err
		}
		switch {
		case r.file != nil:
			return nil, failed("the file is not the last part")
		case part.FileName() != "":
			r.file, r.fileName = content, part.FileName()
			values.Add(part.FormName(), part.FileName())
		default:
			values.Add(part.FormName(), string(content))
		}
	}
}

// validate returns the mistake in a value, or an empty text.
func (p parameter) validate(value string) string {
	switch p.kind {
	case aBoolean:
		if !slices.Contains([]string{"0", "1", "yes", "no", "on", "off", "true", "false"}, value) {
			return "type check ('boolean') failed - got '" + value + "'"
		}
	case aNumber:
		n, err := strconv.Atoi(value)
		switch {
		case err != nil:
			return "type check ('integer') failed - got '" + value + "'"
		case n < p.minimum:
			return "value must have a minimum value of " + strconv.Itoa(p.minimum)
		case n > p.maximum:
			return "value must have a maximum value of " + strconv.Itoa(p.maximum)
		}
	default:
		if p.pattern != nil && !p.pattern.MatchString(value) {
			return "value does not match the regex pattern"
		}
		if p.longest > 0 && len(value) > p.longest {
			return "value may only be " + strconv.Itoa(p.longest) + " characters long"
		}
	}
	return ""
}

// parameters returns the variables in the path together with the other parameters.
func (r *request) parameters() map[string]string {
	all := maps.Clone(r.form)
	maps.Copy(all, r.path)
	return all
}

// isTrue reports whether a boolean parameter is true.
func (r *request) isTrue(name string) bool {
	return slices.Contains([]string{"1", "yes", "on", "true"}, r.form[name])
}

// vmid returns the VMID in the path.
func (r *request) vmid() int {
	n, _ := strconv.Atoi(r.path["vmid"]) // was validated
	return n
}

// methods are the methods that the provider calls.
var methods = []*method{
	{verb: http.MethodGet, path: "version", handle: (*Server).getVersion},
	{verb: http.MethodGet, path: "access/permissions", parameters: map[string]parameter{"path": text("/.*")}, handle: (*Server).getPermissions},
	{verb: http.MethodGet, path: "cluster/options", handle: (*Server).getOptions},
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
			"ide2":   text(`([^,:]+:iso/[^,/]+\.iso|none),media=cdrom`),
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
	{
		verb: http.MethodGet, path: "nodes/{node}/tasks/{upid}/log",
		parameters: map[string]parameter{"start": number(0, 1<<30), "limit": number(0, 1<<30)},
		handle:     (*Server).getTaskLog,
	},
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

// configPrivileges are the privileges that the values of a configuration need.
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
	if volume := r.form["ide2"]; volume != "" && !strings.HasPrefix(volume, "none,") {
		storage, _, _ := strings.Cut(volume, ":")
		needed["/storage/"+storage] = "Datastore.Audit"
	}
	return needed
}
