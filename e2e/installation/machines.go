// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"cmp"
	_ "embed"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// dockerNetwork is the network that Docker has by default.
	dockerNetwork = "bridge"
	// dockerInstanceType is small enough for ten of them on a laptop.
	dockerInstanceType = "small.amd64"
	// reportInterval is how often agents report: what they do not report is noticed soon.
	reportInterval = 10 * time.Second
)

// Machines are containers that run a kubelet and an agent.
type Machines struct {
	// DockerHost is the address of the Docker daemon, and Image the image of the nodes.
	DockerHost, Image string
	// Privileges are those of the containers, as the provider docker has them.
	Privileges string
	// Address is the one of this machine at which containers reach it.
	Address string
	// Kubeconfig is that with which kubelets join, and CA the certificate of the
	// cluster's authority, PEM.
	Kubeconfig, CA []byte
	// DNS is the address of the cluster's DNS, "" for none.
	DNS string
	// Volumes are mounted in the containers, as the provider docker has them.
	Volumes []string
}

// options are those of the provider docker.
func (m *Machines) options() object {
	return object{"host": m.DockerHost, "image": m.Image, "stop_timeout": "5s"}
}

//go:embed userdata.sh
var userdata string

// template is the part of a template that only machines have. The Nodes have these labels,
// beside those that all have.
func (m *Machines) template(labels map[string]string) object {
	encode := base64.StdEncoding.EncodeToString
	var nodeLabels strings.Builder
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&nodeLabels, ",%s=%s", name, labels[name])
	}
	var dns string
	if m.DNS != "" {
		dns = " --cluster-dns=" + m.DNS
	}
	script := strings.NewReplacer("KUBECONFIG", encode(m.Kubeconfig), "CLUSTER_CA", encode(m.CA),
		",NODE_LABELS", nodeLabels.String(), " CLUSTER_DNS", dns).Replace(userdata)
	args := object{"privileges": cmp.Or(m.Privileges, "privileged")}
	if len(m.Volumes) > 0 {
		args["volumes"] = m.Volumes
	}
	return object{"args": args, "userdata": script}
}

// machineAddress is where instances reach a port of this machine.
func (n *Installation) machineAddress(port int) string {
	if n.options.Machines == nil {
		return address(port)
	}
	return net.JoinHostPort(n.options.Machines.Address, strconv.Itoa(port))
}

// merge returns an object with the members of both.
func merge(a, b object) object {
	merged := object{}
	maps.Copy(merged, a)
	maps.Copy(merged, b)
	return merged
}
