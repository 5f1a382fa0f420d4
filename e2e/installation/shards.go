// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"nstance.dev/operator/e2e/controlplane"
)

// Shard is one shard, the ports of its server and the variable part of its
// configuration.
type Shard struct {
	ID               string
	OperatorPort     int
	HealthPort       int
	RegistrationPort int
	ElectionPort     int
	// AgentPort and MetadataPort are used only if instances are machines.
	AgentPort, MetadataPort int
	// Groups are the static groups by id.
	Groups map[string]Group
	// Tenants are further tenants, which have no static group.
	Tenants []string
	// Quota is the most instances that there may be of an instance type, or of a type in a
	// market, TYPE/MARKET. What is not listed has no limit.
	Quota map[string]int
	// AllowedTypes are the instance types that pools may have. Without a list all are allowed.
	AllowedTypes []string
	// LeaderTimeout is after how long without a renewal by the leader another server of
	// the shard leads. Zero means the product's default.
	LeaderTimeout time.Duration
	// RegistrationTimeout is how long an instance may take to register. Zero means the
	// product's default.
	RegistrationTimeout time.Duration
	// CertificateTTL is how long the certificates of operators are valid. Zero means the
	// product's default.
	CertificateTTL time.Duration
	// DrainTimeout is how long instances may take to drain. Zero means that they are
	// deleted at once.
	DrainTimeout time.Duration
	// BootDelay is how long an instance takes until it has a Node. Zero means a second.
	BootDelay time.Duration
}

// Shards returns shards with these ids and the default configuration.
func Shards(ids ...string) []Shard {
	shards := make([]Shard, len(ids))
	for i, id := range ids {
		shards[i].ID = id
	}
	return shards
}

// URL is where the shard's server serves health and metrics.
func (s Shard) URL() string { return "http://" + address(s.HealthPort) }

// Component is the name under which the shard's server runs.
func (s Shard) Component() string { return "shard-" + s.ID }

// PortUses lists the ports of the shard's server.
func (s Shard) PortUses() []controlplane.PortUse {
	uses := make([]controlplane.PortUse, 0, 6)
	for _, port := range s.ports() {
		uses = append(uses, controlplane.PortUse{Port: *port, Component: s.Component()})
	}
	return uses
}

func (s *Shard) ports() []*int {
	return []*int{&s.OperatorPort, &s.HealthPort, &s.RegistrationPort, &s.ElectionPort, &s.AgentPort, &s.MetadataPort}
}

// StartShards runs the servers of all shards.
func (n *Installation) StartShards(ctx context.Context) error {
	for _, shard := range n.options.Shards {
		if err := n.startShard(ctx, shard); err != nil {
			return err
		}
	}
	return nil
}

func (n *Installation) startShard(ctx context.Context, shard Shard) error {
	if err := n.writeShardConfig(shard); err != nil {
		return err
	}
	return n.startServer(ctx, shard, shard.Component(), "1", loopback)
}

// StartStandby runs a second server of a shard, at the same ports of another
// host, and returns the name under which it runs. DialStandby connects to it.
func (n *Installation) StartStandby(ctx context.Context, shardID string) (component string, err error) {
	shard, err := n.shard(shardID)
	if err != nil {
		return "", err
	}
	component = shard.Component() + "-standby"
	return component, n.startServer(ctx, *shard, component, "2", standbyHost)
}

func (n *Installation) startServer(ctx context.Context, shard Shard, component, id, host string) error {
	argv := []string{
		n.options.Server,
		"--shard", shard.ID,
		"--id", id,
		"--storage", "file",
		"--bucket", n.Bucket(),
		"--cache-dir", n.CacheDir(component),
		"--v", "2", // Calls reads from the log
	}
	if n.options.Machines == nil {
		argv = append(argv, "--host", host)
	}
	_, err := n.cp.Run(ctx, controlplane.Spec{
		Name:  component,
		Argv:  argv,
		Ports: []int{shard.OperatorPort, shard.HealthPort, shard.RegistrationPort, shard.ElectionPort},
		Ready: controlplane.Probe{URL: "http://" + net.JoinHostPort(host, strconv.Itoa(shard.HealthPort)) + "/health"},
	})
	return err
}

// ShardURL is where the server of a shard serves health and metrics, "" if there is no such
// shard.
func (n *Installation) ShardURL(shardID string) string {
	shard, err := n.shard(shardID)
	if err != nil {
		return ""
	}
	return shard.URL()
}

// CacheDir is the folder of the cache of the server of that name. Only the cache records
// which instances drain: a server that starts without it decides again.
func (n *Installation) CacheDir(component string) string {
	return filepath.Join(n.dir, "cache", component)
}

// shard finds a shard of the installation.
func (n *Installation) shard(id string) (*Shard, error) {
	i := slices.IndexFunc(n.options.Shards, func(s Shard) bool { return s.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("no shard %q", id)
	}
	return &n.options.Shards[i], nil
}

// fillInPorts gives every port that is zero a free number.
func fillInPorts(shards []Shard) error {
	var ports []*int
	for i := range shards {
		ports = append(ports, shards[i].ports()...)
	}
	return controlplane.FillInPorts(ports)
}

// Hosts of the servers of a shard: there is one machine.
const (
	loopback    = "127.0.0.1"
	standbyHost = "127.0.0.2"
)

func address(port int) string {
	return net.JoinHostPort(loopback, strconv.Itoa(port))
}

// AddShard runs the server of a further shard, which no operator knows yet, and returns its
// address for operators.
func (n *Installation) AddShard(ctx context.Context, id string) (string, error) {
	added := []Shard{{ID: id}}
	if err := fillInPorts(added); err != nil {
		return "", err
	}
	n.options.Shards = append(n.options.Shards, added[0])
	return address(added[0].OperatorPort), n.startShard(ctx, added[0])
}

// GiveNotice announces the termination of a machine, as the file of a notice does.
func (n *Installation) GiveNotice(shardID, instanceID string, content []byte) error {
	path := filepath.Join(n.noticesDir(shardID), instanceID)
	if err := n.writeFile(path, content); err != nil {
		return fmt.Errorf("give instance %s a notice: %w", instanceID, err)
	}
	return nil
}

func (n *Installation) noticesDir(shardID string) string {
	return filepath.Join(n.dir, "notices", shardID)
}
