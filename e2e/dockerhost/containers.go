// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dockerhost

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/server/provider/docker"
)

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
