// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/storage/backend"
)

// values are the values of the settings by their names. A missing value is empty.
type values map[string]string

// list returns the items of a value, which commas separate.
func (v values) list(name string) []string {
	var items []string
	for item := range strings.SplitSeq(v[name], ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// setting is a flag of the command that shapes what it writes.
type setting struct {
	name, usage string
	// scope says for which shards the setting is, such as "--provider aws"; empty for all shards.
	scope string
	// applies reports whether the setting is for a shard, nil for all shards.
	applies func(values) bool
	// fallback returns the default, nil if the setting is required.
	fallback func(values) string
	// check returns an error unless the value is allowed, nil if every value is.
	check func(string) error
}

func (s *setting) isFor(v values) bool { return s.applies == nil || s.applies(v) }

func forProvider(names ...string) func(values) bool {
	return func(v values) bool { return slices.Contains(names, v["provider"]) }
}

func constant(text string) func(values) string { return func(values) string { return text } }

func forJoin(names ...string) func(values) bool {
	return func(v values) bool { return slices.Contains(names, v["join"]) }
}

// settings are in the order in which the command asks for them: a default depends on earlier
// settings only.
var settings = []setting{
	{name: "provider", usage: "provider of the machines: " + strings.Join(providers, ", "), check: oneOf(providers)},
	{name: "join", usage: "how the machines join Kubernetes: " + strings.Join(joinKinds, ", "), check: oneOf(joinKinds)},
	{name: "cluster-id", usage: "id of the cluster of all shards", check: identifier.Validate},
	{name: "shard", usage: "id of the shard", check: identifier.Validate},
	{name: "zone", usage: "zone of the shard (default: the id of the shard)", fallback: func(v values) string { return v["shard"] }},
	{name: "region", usage: "region of the zone (default: the zone without its last part)", fallback: region},
	{name: "storage", usage: "object storage of the servers: file, gcs or s3 (default: by the provider)", fallback: storageOf, check: oneOf(backend.Known)},
	{name: "storage-bucket", usage: "name of the bucket, or the folder of storage file"},
	{name: "storage-prefix", usage: "prefix of all keys in the bucket", fallback: constant("")},
	{name: "address", usage: "host at which machines and the operator reach the server", check: checkHost},
	{name: "arch", usage: "architecture of the machines, amd64 or arm64", fallback: constant("amd64"), check: oneOf([]string{"amd64", "arm64"})},
	{name: "instance-type", usage: "type of the machines (default: a small one of the provider)", fallback: instanceType},
	{name: "cpu", usage: "processors of a type that the provider does not know", fallback: knownSize(0)},
	{name: "memory", usage: "memory of such a type, such as 8Gi", fallback: knownSize(1)},
	{name: "subnet", usage: "subnets of the machines, with commas", scope: "--provider aws or google", applies: forProvider("aws", "google")},
	{name: "bridge", usage: "bridge or network of the machines", scope: "--provider proxmox, docker or qemu", applies: forProvider("proxmox", "docker", "qemu"), fallback: bridge},
	{name: "image", usage: "image of the machines: an id or a pattern of names (aws), a resource (google), a template (proxmox), a file (qemu), a name (docker)",
		scope: "--provider aws, google, proxmox, qemu or docker", applies: forProvider("aws", "google", "proxmox", "qemu", "docker"), fallback: image},
	{name: "security-group", usage: "security groups of the machines, with commas", scope: "--provider aws", applies: forProvider("aws")},
	{name: "project", usage: "id of the project", scope: "--provider google", applies: forProvider("google")},
	{name: "endpoint", usage: "addresses of the API of Proxmox VE, with commas", scope: "--provider proxmox", applies: forProvider("proxmox")},
	{name: "node", usage: "nodes of Proxmox VE for machines, with commas", scope: "--provider proxmox", applies: forProvider("proxmox")},
	{name: "disk-storage", usage: "storage of Proxmox VE for disks", scope: "--provider proxmox", applies: forProvider("proxmox")},
	{name: "iso-storage", usage: "storage of Proxmox VE for ISO images", scope: "--provider proxmox", applies: forProvider("proxmox"), fallback: constant("local")},
	{name: "accel", usage: "kvm, or tcg without hardware support", scope: "--provider qemu", applies: forProvider("qemu"), fallback: constant("kvm"), check: oneOf([]string{"kvm", "tcg"})},
	{name: "kubeconfig", usage: "kubeconfig of the cluster of the Nodes, on the machine of the server", scope: "--provider kwok", applies: forProvider("kwok"), fallback: constant("/etc/nstance/kubeconfig")},
	{name: "eks-cluster", usage: "name of the EKS cluster", scope: "--join eks", applies: forJoin(joinEKS)},
	{name: "eks-endpoint", usage: "URL of its API server", scope: "--join eks", applies: forJoin(joinEKS)},
	{name: "eks-ca", usage: "its CA in base64, as \"aws eks describe-cluster\" prints it", scope: "--join eks", applies: forJoin(joinEKS)},
	{name: "eks-cidr", usage: "its range of service addresses", scope: "--join eks", applies: forJoin(joinEKS), check: checkRange},
	{name: "kubernetes-ca", usage: "file with the CA of Kubernetes", scope: "--provider docker --join kubeadm, or --join kubeadm-certificate",
		applies: func(v values) bool {
			return v["provider"] == "docker" && v["join"] == joinKubeadm || v["join"] == joinCertificate
		}},
	{name: "kubernetes-endpoint", usage: "address and port at which machines reach the API server", scope: "--join kubeadm-certificate", applies: forJoin(joinCertificate), check: checkEndpoint},
	{name: "agent-url", usage: "URL of the program nstance-agent, for images that do not have it", fallback: constant(""), check: checkURL},
	{name: "agent-sha256", usage: "its SHA-256, mandatory with --agent-url", fallback: constant(""), check: checkHash},
	{name: "k3s-url", usage: "URL of the program k3s, for images that do not have it", scope: "--join k3s", applies: forJoin(joinK3s), fallback: constant(""), check: checkURL},
	{name: "k3s-sha256", usage: "its SHA-256, mandatory with --k3s-url", scope: "--join k3s", applies: forJoin(joinK3s), fallback: constant(""), check: checkHash},
	{name: "userdata", usage: "file with userdata to use instead of what the command writes", fallback: constant("")},
}

// addFlags adds a flag for each setting.
func addFlags(flags *pflag.FlagSet) {
	for _, s := range settings {
		usage := s.usage
		switch {
		case s.scope != "":
			usage += " (for " + s.scope + ")"
		case s.fallback == nil:
			usage += " (required)"
		}
		flags.String(s.name, "", usage)
	}
}

// asker asks the user for the value of a setting, which it allows.
type asker func(s *setting) (string, error)

// readSettings returns the values of the flags, with defaults, or an error with all mistakes. With
// an asker, it asks for the required settings that are missing.
func readSettings(flags *pflag.FlagSet, ask asker) (values, error) {
	v := values{}
	var mistakes []error
	for _, s := range settings {
		if flag := flags.Lookup(s.name); flag.Changed {
			v[s.name] = flag.Value.String()
		}
	}
	for i := range settings {
		s := &settings[i]
		given := v[s.name]
		switch {
		case !s.isFor(v):
			if given != "" {
				mistakes = append(mistakes, fmt.Errorf("--%s: is for %s only", s.name, s.scope))
			}
			delete(v, s.name)
			continue
		case given == "" && s.fallback != nil:
			v[s.name] = s.fallback(v)
		case given == "" && ask != nil:
			text, err := ask(s)
			if err != nil {
				return nil, err
			}
			v[s.name] = text
		}
		switch value := v[s.name]; {
		case value == "" && s.fallback == nil:
			mistakes = append(mistakes, fmt.Errorf("--%s: must be set: %s", s.name, s.usage))
		case value != "" && s.check != nil:
			if err := s.check(value); err != nil {
				mistakes = append(mistakes, fmt.Errorf("--%s: %q %w", s.name, value, err))
			}
		}
		// The settings that follow depend on provider and join.
		if s.name == "join" {
			if len(mistakes) > 0 {
				return nil, errors.Join(mistakes...)
			}
			if err := supported(v["provider"], v["join"]); err != nil {
				return nil, err
			}
		}
	}
	return v, errors.Join(append(mistakes, checkTogether(v)...)...)
}

func oneOf(allowed []string) func(string) error {
	return func(value string) error {
		if slices.Contains(allowed, value) {
			return nil
		}
		return fmt.Errorf("is unknown, must be one of %s", strings.Join(allowed, ", "))
	}
}

// checkHost rejects an address with a port: each listener of the server has a port of its own.
func checkHost(value string) error {
	if _, _, err := net.SplitHostPort(value); err == nil || strings.ContainsAny(value, "/[] ") {
		return errors.New("must be a host name or an IP address without a port")
	}
	return nil
}

func checkEndpoint(value string) error {
	if host, port, err := net.SplitHostPort(value); err != nil || host == "" || port == "" || strings.ContainsAny(value, "/ ") {
		return errors.New("must be a host name or an IP address with a port, such as 10.0.0.10:6443")
	}
	return nil
}

func checkRange(value string) error {
	if _, _, err := net.ParseCIDR(value); err != nil {
		return errors.New("must be a range of addresses, such as 10.100.0.0/16")
	}
	return nil
}

func checkURL(value string) error {
	if !strings.HasPrefix(value, "https://") && !strings.HasPrefix(value, "http://") {
		return errors.New("must begin with https:// or http://")
	}
	return nil
}

var sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)

func checkHash(value string) error {
	if !sha256Hex.MatchString(value) {
		return errors.New("must be the output of sha256sum, 64 hexadecimal digits in lower case")
	}
	return nil
}

// checkTogether returns the mistakes in settings that depend on each other.
func checkTogether(v values) []error {
	var mistakes []error
	for _, program := range []string{"agent", "k3s"} {
		if v[program+"-url"] != "" && v[program+"-sha256"] == "" {
			mistakes = append(mistakes, fmt.Errorf("--%s-sha256: must be set with --%s-url: machines run no other program than this", program, program))
		}
	}
	if v["join"] == joinEKS && v["image"] == "" {
		mistakes = append(mistakes, errors.New("--image: must name the images of the version of the EKS cluster, such as amazon-eks-node-al2023-x86_64-standard-1.34-*"))
	}
	if !slices.Contains([]string{"google", "proxmox", "qemu"}, v["provider"]) {
		return mistakes
	}
	for _, size := range []string{"cpu", "memory"} {
		if v[size] == "" {
			mistakes = append(mistakes, fmt.Errorf("--%s: must be set, because the provider does not know the type %q", size, v["instance-type"]))
		}
	}
	return mistakes
}

// region returns the part of a zone before its letter: us-west-2 of us-west-2a, and europe-west1
// of europe-west1-b.
func region(v values) string {
	switch zone := v["zone"]; v["provider"] {
	case "aws":
		return strings.TrimRight(zone, "abcdefghijklmnopqrstuvwxyz")
	case "google":
		if at := strings.LastIndex(zone, "-"); at > 0 {
			return zone[:at]
		}
		return zone
	default:
		return zone
	}
}

func storageOf(v values) string {
	switch v["provider"] {
	case "aws", "proxmox":
		return backend.S3
	case "google":
		return backend.GCS
	}
	return backend.File
}

func instanceType(v values) string {
	arm := v["arch"] == "arm64"
	types := map[string][2]string{
		"aws":     {"m7i.large", "m7g.large"},
		"google":  {"e2-standard-2", "t2a-standard-2"},
		"docker":  {"small.amd64", "small.arm64"},
		"kwok":    {"m7i.large", "m7g.large"},
		"proxmox": {"small", "small"},
		"qemu":    {"small", "small"},
	}[v["provider"]]
	if arm {
		return types[1]
	}
	return types[0]
}

// sizes are processors and memory of the default types of providers that know no types.
var sizes = map[string][2]string{
	"e2-standard-2":  {"2", "8Gi"},
	"t2a-standard-2": {"2", "8Gi"},
	"small":          {"2", "4Gi"},
}

// knownSize returns the default of --cpu or --memory.
func knownSize(index int) func(values) string {
	return func(v values) string {
		if !slices.Contains([]string{"google", "proxmox", "qemu"}, v["provider"]) {
			return ""
		}
		return sizes[v["instance-type"]][index]
	}
}

func bridge(v values) string {
	return map[string]string{"proxmox": "vmbr0", "docker": "bridge"}[v["provider"]]
}

func image(v values) string {
	if v["join"] == joinEKS {
		return ""
	}
	return map[string]string{
		"aws": "nstance-node-*", "google": "projects/" + v["project"] + "/global/images/family/nstance-node", "proxmox": "nstance-node",
		"qemu": "/var/lib/nstance/images/nstance-node.qcow2", "docker": "nstance-node:dev",
	}[v["provider"]]
}
