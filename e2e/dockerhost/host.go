// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package dockerhost prepares the Docker of this machine for nodes that are containers: it finds
// or starts a daemon, builds the image of the nodes, and removes the containers of nodes that are
// left.
package dockerhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/server/provider/docker"
)

const systemSocket = "/var/run/docker.sock"

// Host is a Docker daemon.
type Host struct {
	// Address is the address of its API, as in DOCKER_HOST.
	Address string
	Client  *client.Client
	// Bridge is the address of this machine in the network of the containers.
	Bridge string
	// private is set if the daemon belongs to a checkout of the repository.
	private *private
}

// Open returns the daemon of DOCKER_HOST or of the system. If no daemon runs, it starts a daemon
// with its state in dir, which only root can do. The last program that uses it stops it in Close.
// It raises the limit of inotify instances if it is too low for many nodes.
func Open(ctx context.Context, dir string) (*Host, error) {
	if err := allowInotify(maxInotifyInstances); err != nil {
		return nil, err
	}
	address := os.Getenv("DOCKER_HOST")
	h, err := Connect(ctx, defaultAddress(address))
	if err == nil {
		return h, nil
	}
	if address != "" {
		return nil, fmt.Errorf("use the Docker of DOCKER_HOST=%s: %w", address, err)
	}
	program, lookErr := exec.LookPath("dockerd")
	if lookErr != nil {
		return nil, fmt.Errorf("no Docker runs at %s, and dockerd is not installed (Debian: apt-get install docker.io iptables): %w", systemSocket, err)
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("no Docker runs at %s that this user may use, and only root can start one: %w", systemSocket, err)
	}
	return openPrivate(ctx, program, dir)
}

func defaultAddress(address string) string {
	if address == "" {
		return "unix://" + systemSocket
	}
	return address
}

// Connect returns the daemon at an address if it responds.
func Connect(ctx context.Context, address string) (*Host, error) {
	if !strings.HasPrefix(address, "unix://") {
		return nil, fmt.Errorf("the address of Docker is %s, needs to begin with unix://: the nodes are on this machine", address)
	}
	docker, err := client.New(client.WithHost(address))
	if err != nil {
		return nil, fmt.Errorf("create a client of Docker at %s: %w", address, err)
	}
	h := &Host{Address: address, Client: docker}
	if h.Bridge, err = h.findBridge(ctx); err != nil {
		return nil, errors.Join(err, docker.Close())
	}
	return h, nil
}

// Close stops the daemon if it is private and no other program uses it.
func (h *Host) Close() error {
	if h == nil {
		return nil
	}
	err := h.Client.Close()
	if h.private != nil {
		err = errors.Join(err, h.private.close())
	}
	return err
}

// findBridge returns the address of this machine in the network that containers have by
// default.
func (h *Host) findBridge(ctx context.Context) (string, error) {
	bridge, err := h.Client.NetworkInspect(ctx, "bridge", client.NetworkInspectOptions{})
	if err != nil {
		return "", fmt.Errorf("inspect Docker's network bridge: %w", err)
	}
	// The network may have no gateway.
	name := bridge.Network.Options["com.docker.network.bridge.name"]
	link, err := net.InterfaceByName(name)
	if err != nil {
		return "", fmt.Errorf("find the interface %q of Docker's network bridge: %w", name, err)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return "", fmt.Errorf("read the addresses of interface %s: %w", name, err)
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil {
			return network.IP.String(), nil
		}
	}
	return "", fmt.Errorf("interface %s has no IPv4 address", name)
}

// Nodes returns the containers of the instances of shards.
func (h *Host) Nodes(ctx context.Context, shards ...string) ([]container.Summary, error) {
	var nodes []container.Summary
	for _, shard := range shards {
		filters := client.Filters{}.
			Add("label", docker.LabelClusterID+"="+installation.ClusterID).
			Add("label", docker.LabelShard+"="+shard)
		list, err := h.Client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
		if err != nil {
			return nil, fmt.Errorf("list the containers of shard %s: %w", shard, err)
		}
		nodes = append(nodes, list.Items...)
	}
	return nodes, nil
}

// RemoveNodes removes the containers of the instances of shards, whose servers must have
// stopped, and returns how many there were.
func (h *Host) RemoveNodes(ctx context.Context, shards ...string) (int, error) {
	nodes, err := h.Nodes(ctx, shards...)
	if err != nil {
		return 0, err
	}
	var removals errgroup.Group
	for _, node := range nodes {
		removals.Go(func() error {
			_, err := h.Client.ContainerRemove(ctx, node.ID, client.ContainerRemoveOptions{RemoveVolumes: true, Force: true})
			if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
				return fmt.Errorf("remove container %s: %w", node.ID, err)
			}
			return nil
		})
	}
	if err := removals.Wait(); err != nil {
		return 0, err
	}
	return len(nodes), nil
}

const (
	// maxInotifyInstances is the kernel's limit for the inotify instances of a user.
	maxInotifyInstances = "/proc/sys/fs/inotify/max_user_instances"
	// wantInotifyInstances is enough for a hundred nodes: containerd and the kubelet of a node
	// have eight, all of the same user. The default of many kernels, 128, is enough for 15.
	wantInotifyInstances = 1024
)

// allowInotify raises a limit of this machine that is too low for its nodes: a kubelet that
// gets no inotify instance exits, and its node with it.
func allowInotify(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the limit of inotify instances: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return fmt.Errorf("read the limit of inotify instances of %s: %w", file, err)
	}
	if limit >= wantInotifyInstances {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(wantInotifyInstances)), 0o644); err != nil {
		return fmt.Errorf("raise fs.inotify.max_user_instances from %d to %d, which the kubelets of the nodes need: %w",
			limit, wantInotifyInstances, err)
	}
	return nil
}
