// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstance

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"

	"nstance.dev/operator/e2e/controlplane"
)

// Shard is one shard, the ports of its server and what is special about its
// configuration.
type Shard struct {
	ID           string
	OperatorPort int
	HealthPort   int
	// Groups are the static groups by id.
	Groups map[string]Group
	// Quota is the most instances that there may be of an instance type. A type
	// that is not listed has no limit.
	Quota map[string]int
}

// URL is where the shard's server serves health and metrics.
func (s Shard) URL() string { return "http://" + address(s.HealthPort) }

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
	if err := n.prepareShard(shard); err != nil {
		return err
	}
	if err := n.writeShardConfig(shard); err != nil {
		return err
	}
	_, err := n.cp.Run(ctx, controlplane.Spec{
		Name: shard.Component(),
		Argv: []string{
			n.options.Server,
			"--config", n.shardConfigPath(shard.ID),
			"--data-dir", filepath.Join(n.shardDir(shard.ID), "data"),
			"--v", "2", // Calls reads from the log
		},
		Ports: []int{shard.OperatorPort, shard.HealthPort},
		Ready: controlplane.Probe{URL: "http://" + address(shard.HealthPort) + "/health"},
	})
	return err
}

// shard finds a shard of the installation.
func (n *Nstance) shard(id string) (*Shard, error) {
	i := slices.IndexFunc(n.options.Shards, func(s Shard) bool { return s.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("no shard %q", id)
	}
	return &n.options.Shards[i], nil
}

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
