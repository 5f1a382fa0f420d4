// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/e2e/clusterdns"
	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/podroutes"
)

// openDocker returns the Docker whose containers are the nodes.
func (d devcluster) openDocker(ctx context.Context) (*dockerhost.Host, error) {
	host, err := dockerhost.Open(ctx, filepath.Join(d.root, "e2e", ".cache", "docker"))
	if err != nil {
		return nil, fmt.Errorf("run nodes in containers: %w", err)
	}
	return host, nil
}

// machines are the nodes of a cluster that are containers. Nil means that kwok simulates the
// nodes.
type machines struct {
	devcluster
	docker  *dockerhost.Host
	network *podroutes.Network
	image   string
}

// openMachines finds or starts the Docker of the nodes.
func (d devcluster) openMachines(ctx context.Context) (*machines, error) {
	if err := dockerhost.CheckBuild(); err != nil {
		return nil, err
	}
	network, err := podroutes.ClaimDefault()
	if err != nil {
		return nil, err
	}
	if err := network.AddDNSAddress(); err != nil {
		return nil, errors.Join(err, network.Close())
	}
	host, err := d.openDocker(ctx)
	if err != nil {
		return nil, errors.Join(err, network.Close())
	}
	// Containers may exist after this line, also if this program is killed.
	if err := os.WriteFile(d.dockerFile(), []byte(host.Address+"\n"), 0o644); err != nil {
		return nil, errors.Join(err, network.Close(), host.Close())
	}
	return &machines{devcluster: d, docker: host, network: network}, nil
}

// buildImage builds the image of the nodes.
func (m *machines) buildImage(ctx context.Context) (err error) {
	if m != nil {
		m.image, err = m.docker.NodeImage(ctx, m.root, "dev", m.out)
	}
	return err
}

// address is the address at which nodes reach this machine, "" if kwok simulates them.
func (m *machines) address() string {
	if m == nil {
		return ""
	}
	return m.docker.Bridge
}

// podNetwork is the range of the addresses of Pods.
func (m *machines) podNetwork() string {
	if m == nil {
		return ""
	}
	return m.network.String()
}

// without lists the parts of the control plane that nodes with a kubelet replace.
func (m *machines) without() []string {
	if m == nil {
		return nil
	}
	return []string{controlplane.KWOK}
}

// shards returns the shards of the cluster. Containers need more memory than simulated nodes, so
// that only the sample has nodes then.
func (m *machines) shards() []installation.Shard {
	list := slices.Clone(shards)
	if m != nil {
		for i := range list {
			list[i].Groups = nil
		}
	}
	return list
}

// installation returns the options with which instances are containers.
func (m *machines) installation(cp *controlplane.ControlPlane) (*installation.Machines, error) {
	if m == nil {
		return nil, nil
	}
	machines, err := m.docker.Installation(cp, m.image)
	if err != nil {
		return nil, err
	}
	machines.DNS = m.network.DNSAddress().String()
	return machines, nil
}

// connect makes Pods reachable and serves them the names of Services, until ctx is done. The
// returned function waits until the routes are removed.
func (m *machines) connect(ctx context.Context, cp *controlplane.ControlPlane) (wait func() error, err error) {
	if m == nil {
		return func() error { return nil }, nil
	}
	client, err := kubernetes.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return podroutes.Run(ctx, client) })
	group.Go(func() error { return clusterdns.Run(ctx, client, m.network.DNSAddress()) })
	return func() error {
		cancel()
		return group.Wait()
	}, nil
}

// close removes the containers. The servers must have stopped.
func (m *machines) close(ctx context.Context) error {
	if m == nil {
		return nil
	}
	return errors.Join(m.removeNodes(ctx, m.docker), m.network.Close())
}

// removeLeftNodes removes the containers of an up that was killed.
func (d devcluster) removeLeftNodes(ctx context.Context) error {
	if _, err := os.Stat(d.dockerFile()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	host, err := d.openDocker(ctx)
	if err != nil {
		return err
	}
	return d.removeNodes(ctx, host)
}

func (d devcluster) removeNodes(ctx context.Context, host *dockerhost.Host) error {
	removed, err := host.RemoveNodes(ctx, shardIDs()...)
	if removed > 0 {
		fmt.Fprintf(d.out, "removed %d nodes\n", removed)
	}
	if err == nil {
		err = os.Remove(d.dockerFile())
	}
	return errors.Join(err, host.Close())
}

// nodes returns the containers of the nodes, and the address of their Docker.
func (d devcluster) nodes(ctx context.Context) (nodes []container.Summary, address string, err error) {
	data, err := os.ReadFile(d.dockerFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	address = strings.TrimSpace(string(data))
	host, err := dockerhost.Connect(ctx, address)
	if err != nil {
		return nil, "", err
	}
	nodes, err = host.Nodes(ctx, shardIDs()...)
	return nodes, address, errors.Join(err, host.Close())
}

// dockerFile is the file with the address of the Docker that runs the nodes of this cluster.
func (d devcluster) dockerFile() string { return filepath.Join(d.dir, "docker") }

func shardIDs() []string {
	var ids []string
	for _, shard := range shards {
		ids = append(ids, shard.ID)
	}
	return ids
}
