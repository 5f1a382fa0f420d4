// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"nstance.dev/operator/manifests/agent"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
)

//go:embed templates
var templates embed.FS

// Places on the machine of the server.
const (
	keyFile          = "/etc/nstance/encryption.key"
	proxmoxToken     = "proxmox-token"
	proxmoxAuthority = "pve-root-ca.pem"
	namespace        = "nstance-system"
)

// file is a file that the command writes.
type file struct {
	name, text string
	mode       fs.FileMode
}

// document has the values of the templates in the folder of the same name.
type document struct {
	// V are settings by short names.
	V map[string]string
	// KeyFile is the encryption key, Namespace the namespace of the operator.
	KeyFile, Namespace string
	// ConfigFile and UserdataFile are names of written files.
	ConfigFile, UserdataFile string
	// Names are the values of --subnet, Subnets the subnets of the shard.
	Names, Subnets       []string
	Endpoints, Nodes     []string
	SecurityGroups       []string
	ImageID              bool
	ImageOwner, NodeRole string
	Userdata             string
	JoinFile             bool
	// JoinKubeconfig is the kubeconfig of machines that join with a certificate, nil for others.
	JoinKubeconfig     map[string]any
	Vars               map[string]string
	Credentials        []string
	Root               string
	MachinePermissions string
	ObjectPermissions  string
	provider, join     string
}

// newDocument returns the values of the templates.
func newDocument(v values) (*document, error) {
	d := &document{
		V:                  maps.Clone(v),
		KeyFile:            keyFile,
		Namespace:          namespace,
		ConfigFile:         v["shard"] + ".jsonc",
		UserdataFile:       "userdata.sh",
		Names:              v.list("subnet"),
		Subnets:            []string{"nodes"},
		Endpoints:          v.list("endpoint"),
		Nodes:              v.list("node"),
		SecurityGroups:     v.list("security-group"),
		ImageID:            strings.HasPrefix(v["image"], "ami-"),
		ImageOwner:         "self",
		NodeRole:           nodeRole(v),
		JoinFile:           slices.Contains([]string{joinKubeadm, joinK3s, joinRKE2}, v["join"]),
		MachinePermissions: strings.Join(machinePermissions, ","),
		ObjectPermissions:  strings.Join(objectPermissions, ","),
		provider:           v["provider"],
		join:               v["join"],
	}
	for short, name := range map[string]string{
		"cluster": "cluster-id", "type": "instance-type", "iso": "iso-storage", "disks": "disk-storage", "bucket": "storage-bucket", "prefix": "storage-prefix",
	} {
		d.V[short] = v[name]
	}
	if strings.HasPrefix(v["image"], "amazon-") {
		d.ImageOwner = "amazon"
	}
	switch v["provider"] {
	case "aws":
		d.Subnets = d.Names
	case "docker":
		d.Subnets, d.Root = []string{v["bridge"]}, "Who can use the daemon is root anyway."
	case "kwok":
		d.Credentials = []string{"kubeconfig"}
	case "qemu":
		d.Root = "QEMU's bridge helper and /dev/kvm need it."
	case "proxmox":
		d.Credentials = []string{proxmoxToken, proxmoxAuthority}
	}
	if v["join"] == joinEKS {
		d.UserdataFile = "userdata.mime"
	}
	var err error
	if d.Vars, err = vars(v); err != nil {
		return nil, err
	}
	if v["join"] == joinCertificate {
		if d.JoinKubeconfig, err = joinKubeconfig(v); err != nil {
			return nil, err
		}
	}
	d.Userdata, err = userdata(v)
	return d, err
}

// vars returns the values that the userdata needs and that are no secrets: operators and readers
// see them.
func vars(v values) (map[string]string, error) {
	found := map[string]string{}
	for name, flag := range map[string]string{
		"project": "project", "agent_url": "agent-url", "agent_sha256": "agent-sha256", "k3s_url": "k3s-url", "k3s_sha256": "k3s-sha256",
		"eks_cluster": "eks-cluster", "eks_endpoint": "eks-endpoint", "eks_ca": "eks-ca", "eks_cidr": "eks-cidr",
	} {
		if v[flag] != "" {
			found[name] = v[flag]
		}
	}
	if path := v["kubernetes-ca"]; path != "" && v["join"] == joinKubeadm {
		authority, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--kubernetes-ca: %w", err)
		}
		found["kubernetes_ca"] = encode(authority)
	}
	if len(found) == 0 {
		return nil, nil
	}
	return found, nil
}

// joinKubeconfig returns the kubeconfig with which machines join that have a certificate: kubeadm finds the
// API server and its CA in it, and the kubelet requests its own certificate with it. It has no secret.
func joinKubeconfig(v values) (map[string]any, error) {
	authority, err := os.ReadFile(v["kubernetes-ca"])
	if err != nil {
		return nil, fmt.Errorf("--kubernetes-ca: %w", err)
	}
	type object = map[string]any
	const name = "join"
	return object{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []object{{"name": name, "cluster": object{
			"server": "https://" + v["kubernetes-endpoint"], "certificate-authority-data": encode(authority),
		}}},
		"users": []object{{"name": name, "user": object{
			"client-certificate": "/opt/nstance-agent/recv/bootstrap.crt", "client-key": "/opt/nstance-agent/keys/bootstrap.key",
		}}},
		"contexts": []object{{"name": name, "context": object{"cluster": name, "user": name}}},
	}, nil
}

// files returns all files for the shard. It validates the configuration as the server does.
func (d *document) files(known provider.Registry) ([]file, error) {
	text, err := d.render("shard.jsonc.tmpl", "options.jsonc.tmpl")
	if err != nil {
		return nil, err
	}
	source := config.Source{Key: d.ConfigFile, Data: []byte(text)}
	parsed, err := source.Parse(known)
	if err != nil {
		return nil, fmt.Errorf("the settings give no valid configuration: %w", err)
	}
	if warnings := parsed.Warnings(); len(warnings) > 0 {
		return nil, fmt.Errorf("the settings give a configuration with warnings: %s", strings.Join(warnings, "; "))
	}
	files := []file{{d.ConfigFile, text, 0o644}}
	if d.Userdata != "" {
		files = append(files, file{d.UserdataFile, d.Userdata, 0o644})
	}
	if d.JoinFile {
		files = append(files, file{"join-secret.sh", joinSecret(d.join), 0o755})
	}
	for _, rendered := range []struct {
		name, template string
		mode           fs.FileMode
	}{
		{"nstance-server.service", "nstance-server.service.tmpl", 0o644},
		{"install.sh", "install.sh.tmpl", 0o755},
		{"pool.yaml", "pool.yaml.tmpl", 0o644},
	} {
		if text, err = d.render(rendered.template); err != nil {
			return nil, err
		}
		files = append(files, file{rendered.name, text, rendered.mode})
	}
	switch d.provider {
	case "aws":
		stack, err := json.MarshalIndent(newStack(d), "", "  ")
		if err != nil {
			return nil, err
		}
		files = append(files, file{"stack.json", string(stack) + "\n", 0o644})
	case "google", "proxmox":
		if text, err = d.render(d.provider + "-setup.sh.tmpl"); err != nil {
			return nil, err
		}
		files = append(files, file{"setup.sh", text, 0o755})
	}
	return files, nil
}

func (d *document) render(names ...string) (string, error) {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = "templates/" + name
	}
	parsed, err := template.New(names[0]).Option("missingkey=error").Funcs(template.FuncMap{
		"json":       toJSON,
		"address":    func(host string, port int) (string, error) { return toJSON(net.JoinHostPort(host, strconv.Itoa(port))) },
		"unit":       unitWord,
		"shellQuote": func(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" },
	}).ParseFS(templates, paths...)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	if err := parsed.Execute(&text, d); err != nil {
		return "", err
	}
	return text.String(), nil
}

// toJSON returns value as JSON in one line, in which the text of a script stays readable.
func toJSON(value any) (string, error) {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return strings.TrimSuffix(text.String(), "\n"), err
}

// unitWord returns text as one word of a command line in a unit of systemd
// (https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html#Command%20lines).
func unitWord(text string) (string, error) {
	if strings.ContainsAny(text, "\n\r\x00") {
		return "", errors.New("a unit of systemd cannot have a value with a line break")
	}
	escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(text)
	if escaped == text && text != "" && !strings.ContainsAny(text, " \t';") {
		return text, nil
	}
	return `"` + escaped + `"`, nil
}

// joinSecret returns the script that stores what machines join with.
func joinSecret(join string) string {
	if join == joinKubeadm {
		return agent.JoinSecret
	}
	return strings.ReplaceAll(embedded("join-secret.sh"), "DISTRIBUTION", join)
}

// embedded returns a file of the folder templates, which the build guarantees.
func embedded(name string) string {
	text, err := templates.ReadFile("templates/" + name)
	if err != nil {
		panic(err)
	}
	return string(text)
}
