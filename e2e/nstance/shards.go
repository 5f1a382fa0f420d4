// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstance

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"nstance.dev/operator/e2e/controlplane"
)

// Shard is one shard and the ports of its server.
type Shard struct {
	ID           string
	OperatorPort int
	HealthPort   int
}

// Component is the name under which the shard's server runs.
func (s Shard) Component() string { return "shard-" + s.ID }

// PortUses lists the ports of the shard's server.
func (s Shard) PortUses() []controlplane.PortUse {
	return []controlplane.PortUse{
		{Port: s.OperatorPort, Component: s.Component()},
		{Port: s.HealthPort, Component: s.Component()},
	}
}

// StartShards runs the servers of all shards.
func (n *Nstance) StartShards(ctx context.Context) error {
	for _, shard := range n.options.Shards {
		if err := n.startShard(ctx, shard); err != nil {
			return err
		}
	}
	return nil
}

func (n *Nstance) startShard(ctx context.Context, shard Shard) error {
	dir := filepath.Join(n.dir, shard.ID)
	config, err := n.writeShardConfig(dir, shard)
	if err != nil {
		return err
	}
	_, err = n.cp.Run(ctx, controlplane.Spec{
		Name:  shard.Component(),
		Argv:  []string{n.options.Server, "--config", config, "--data-dir", filepath.Join(dir, "data")},
		Ports: []int{shard.OperatorPort, shard.HealthPort},
		Ready: controlplane.Probe{URL: "http://" + address(shard.HealthPort) + "/health"},
	})
	return err
}

// writeShardConfig writes the server's certificate, its access to the cluster
// in which its instances are Nodes, and its configuration.
func (n *Nstance) writeShardConfig(dir string, shard Shard) (string, error) {
	certPEM, keyPEM, err := n.authority.IssueServer([]string{"127.0.0.1", "localhost"}, certificateLifetime)
	if err != nil {
		return "", fmt.Errorf("issuing the certificate of shard %s: %w", shard.ID, err)
	}
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if err := n.writeFile(cert, certPEM); err != nil {
		return "", err
	}
	if err := n.writeFile(key, keyPEM); err != nil {
		return "", err
	}
	kubeconfig, err := n.cp.Kubeconfig(shard.Component())
	if err != nil {
		return "", err
	}
	config, err := json.MarshalIndent(object{
		"cluster": object{"id": ClusterID},
		"shard": object{
			"id": shard.ID,
			"infra": object{
				"provider": "kwok",
				"region":   "us-west-2",
				"zone":     shard.ID,
				"options":  object{"kubeconfig": kubeconfig, "boot_delay": "1s"},
			},
			"bind": object{
				"health_addr":   address(shard.HealthPort),
				"operator_addr": address(shard.OperatorPort),
			},
			"tls":          object{"ca": n.caFile(), "cert": cert, "key": key},
			"subnet_pools": object{"default": []string{"subnet-a"}},
		},
		"templates": object{
			"worker": object{
				"kind":          "knd",
				"arch":          "amd64",
				"instance_type": "m7i.large",
				"subnet_pool":   "default",
			},
		},
		"groups": object{Tenant: object{}},
	}, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "config.jsonc")
	return path, n.writeFile(path, config)
}

// object is a JSON object.
type object = map[string]any

// fillInPorts gives every port that is zero a free number.
func fillInPorts(shards []Shard) error {
	var unset []*int
	for i := range shards {
		for _, port := range []*int{&shards[i].OperatorPort, &shards[i].HealthPort} {
			if *port == 0 {
				unset = append(unset, port)
			}
		}
	}
	free, err := controlplane.FreePorts(len(unset))
	if err != nil {
		return err
	}
	for i, port := range unset {
		*port = free[i]
	}
	return nil
}

func address(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
