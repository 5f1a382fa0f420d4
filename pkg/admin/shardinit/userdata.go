// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"

	"nstance.dev/operator/manifests/agent"
)

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
	case join == joinKubeadm:
		return compose(readyFile, "agent.sh", "kubeadm.sh"), nil
	case join == joinK3s || join == joinRKE2:
		return strings.ReplaceAll(compose(readyKubelet, "agent.sh", "rancher.sh"), "DISTRIBUTION", join), nil
	case join == joinEKS:
		return strings.Replace(compose("", "eks.mime"), "SCRIPT\n", compose(readyKubelet, "agent.sh"), 1), nil
	default:
		return compose("", "agent.sh"), nil
	}
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
