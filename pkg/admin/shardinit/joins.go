// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit

import (
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"

	"nstance.dev/operator/manifests/agent"
)

// How machines join Kubernetes.
const (
	joinKubeadm = "kubeadm"
	// joinCertificate is kubeadm with a certificate of the shard for each machine, and no secret.
	joinCertificate = "kubeadm-certificate"
	joinK3s         = "k3s"
	joinRKE2        = "rke2"
	joinEKS         = "eks"
	joinTalos       = "talos"
	joinNone        = "none"
)

var joinKinds = []string{joinKubeadm, joinCertificate, joinK3s, joinRKE2, joinEKS, joinTalos, joinNone}

var providers = []string{"aws", "google", "proxmox", "qemu", "docker", "kwok"}

// machines are the providers whose images are distributions with cloud-init.
var machines = []string{"aws", "google", "proxmox", "qemu"}

// supported returns an error with the reason if machines of a provider cannot join in this way.
func supported(provider, join string) error {
	reason := unsupported(provider, join)
	if reason == "" {
		return nil
	}
	var possible []string
	for _, other := range joinKinds {
		if unsupported(provider, other) == "" {
			possible = append(possible, other)
		}
	}
	return fmt.Errorf("--join: %s does not work with --provider %s, which has %s: %s", join, provider, strings.Join(possible, ", "), reason)
}

func unsupported(provider, join string) string {
	switch {
	case join == joinNone:
		return ""
	case join == joinTalos:
		// https://www.talos.dev/latest/introduction/what-is-talos/ and
		// https://www.talos.dev/latest/reference/configuration/v1alpha1/config/#Config.machine
		return "Talos Linux runs no agent, which reports the health of the machine and receives secrets, and the configuration of " +
			"its machines has secrets of the cluster, which would be in the userdata, where others can read them"
	case provider == "kwok":
		return "it boots no machine that could join: its Nodes are objects"
	case join == joinEKS && provider != "aws":
		// https://awslabs.github.io/amazon-eks-ami/nodeadm/
		return "nodeadm of EKS reads the metadata service of EC2, and the cluster accepts roles of IAM"
	case provider == "docker" && join == joinCertificate:
		return "its image nstance-node has the kubelet, which joins with the file of --join kubeadm"
	case provider == "docker" && join != joinKubeadm:
		return "its image nstance-node has the kubelet, and no other distribution of Kubernetes"
	case provider == "docker" || slices.Contains(machines, provider):
		return ""
	}
	return "unknown provider"
}

// Readiness of a machine (docs/agent.md#readiness): kubeadm join has succeeded, or the kubelet
// responds, which k3s, RKE2 and nodeadm start when the cluster has accepted the machine.
const (
	readyFile    = "NSTANCE_READY_FILE=/run/nstance-joined\n"
	readyKubelet = "NSTANCE_READY_URL=http://127.0.0.1:10248/healthz\n"
)

// userdata returns the userdata of the machines, empty for a provider without machines. It is a
// template for the server.
func userdata(v values) (string, error) {
	if path := v["userdata"]; path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("--userdata: %w", err)
		}
		return string(text), nil
	}
	switch join := v["join"]; {
	case v["provider"] == "kwok":
		return "", nil
	case v["provider"] == "docker" && join == joinKubeadm:
		return compose(readyKubelet, "docker.sh", "docker-kubelet.sh"), nil
	case v["provider"] == "docker":
		return compose("", "docker.sh"), nil
	case join == joinKubeadm || join == joinCertificate:
		return kubeadm(join == joinCertificate), nil
	case join == joinK3s || join == joinRKE2:
		return strings.ReplaceAll(compose(readyKubelet, "agent.sh", "rancher.sh"), "DISTRIBUTION", join), nil
	case join == joinEKS:
		return strings.Replace(compose("", "eks.mime"), "SCRIPT\n", compose(readyKubelet, "agent.sh"), 1), nil
	default:
		return compose("", "agent.sh"), nil
	}
}

// kubeadm returns the userdata of machines that join with kubeadm. With a certificate the machine has the name
// of its Node in it, and waits for it.
func kubeadm(certificate bool) string {
	var wait, name string
	if certificate {
		wait = "until [ -s /opt/nstance-agent/recv/bootstrap.crt ]; do sleep 1; done\n"
		name = "  name: {{toJSON .Instance.ID}}\n"
	}
	return strings.NewReplacer("WAIT_FOR_CERTIFICATE\n", wait, "NAME_OF_THE_NODE\n", name).Replace(compose(readyFile, "agent.sh", "kubeadm.sh"))
}

// compose joins files of the folder userdata.
func compose(readiness string, names ...string) string {
	var text strings.Builder
	for _, name := range names {
		text.WriteString(embedded("userdata/" + name))
	}
	return strings.NewReplacer("READINESS\n", readiness, "UNIT_OF_THE_AGENT\n", agent.Unit).Replace(text.String())
}

func encode(data []byte) string { return base64.StdEncoding.EncodeToString(data) }
