// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/provider/docker/metadata"
)

const (
	// maxUserdata is more than userdata may have.
	maxUserdata = 2 << 20
	// maxListAge is how long a list shows where to look for an address. A second container
	// with the address is noticed by then.
	maxListAge = 5 * time.Second
)

// containers is the source of the metadata service. What the daemon reports about a
// container is read for every request, so that an address that has passed to another
// container never gives the metadata of the one before.
type containers struct {
	api     *API
	notices string

	mu sync.Mutex
	// byAddress has the ids of the containers that a list has shown with an address. It was
	// requested at listed.
	byAddress map[netip.Addr][]string
	listed    time.Time
}

var _ metadata.Source = (*containers)(nil)

// Instance returns the instance whose container has an address.
func (c *containers) Instance(ctx context.Context, address netip.Addr) (*metadata.Instance, error) {
	arrived := time.Now()
	c.mu.Lock()
	ids, listed := c.byAddress[address], c.listed
	c.mu.Unlock()
	if len(ids) == 1 && arrived.Sub(listed) < maxListAge {
		i, err := c.inspect(ctx, address, ids[0])
		if err == nil && i.ID != "" || err != nil && !errors.Is(err, metadata.ErrUnknown) {
			return i, err
		}
	}
	ids, err := c.list(ctx, address, arrived)
	if err != nil {
		return nil, err
	}
	var found *metadata.Instance
	for _, id := range ids {
		i, err := c.inspect(ctx, address, id)
		switch {
		case errors.Is(err, metadata.ErrUnknown):
		case err != nil:
			return nil, err
		case found != nil:
			return nil, fmt.Errorf("address %s of several containers: %w", address, metadata.ErrUnknown)
		default:
			found = i
		}
	}
	if found == nil || found.ID == "" {
		return nil, metadata.ErrUnknown
	}
	return found, nil
}

// list returns the containers of any kind that a list shows with an address. The list was
// requested after a time; callers that wait share one.
func (c *containers) list(ctx context.Context, address netip.Addr, after time.Time) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.listed.After(after) {
		begin := time.Now()
		list, err := c.api.docker.ContainerList(ctx, client.ContainerListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list the containers with addresses: %w", err)
		}
		c.listed, c.byAddress = begin, map[netip.Addr][]string{}
		for _, summary := range list.Items {
			for _, has := range statusOf(summary).addresses() {
				if !slices.Contains(c.byAddress[has], summary.ID) {
					c.byAddress[has] = append(c.byAddress[has], summary.ID)
				}
			}
		}
	}
	return c.byAddress[address], nil
}

// inspect returns the instance of a container that has an address. The id of the instance
// is empty if the container is not one of the shard.
func (c *containers) inspect(ctx context.Context, address netip.Addr, id string) (*metadata.Instance, error) {
	inspected, err := c.api.docker.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil, metadata.ErrUnknown
	}
	if err != nil {
		return nil, fmt.Errorf("inspect container %s: %w", id, err)
	}
	s := statusOfInspected(inspected.Container)
	if s.state != container.StateRunning || !slices.Contains(s.addresses(), address) {
		return nil, metadata.ErrUnknown
	}
	// The id becomes the name of a file.
	if !isOurs(c.api.shard, s.labels) || !isIdentifier(s.labels[LabelInstanceID]) {
		return &metadata.Instance{Machine: inspected.Container.ID}, nil
	}
	return c.describe(inspected.Container, address), nil
}

func isIdentifier(text string) bool { return identifier.Validate(text) == nil }

// describe returns the metadata of a container, under the names that AWS has for them.
func (c *containers) describe(inspected container.InspectResponse, address netip.Addr) *metadata.Instance {
	labels := inspected.Config.Labels
	values := map[string]string{
		"ami-id":                      inspected.Config.Image,
		"hostname":                    inspected.Config.Hostname,
		"instance-id":                 labels[LabelInstanceID],
		"instance-type":               labels[LabelInstanceType],
		"local-hostname":              inspected.Config.Hostname,
		"local-ipv4":                  address.String(),
		"placement/availability-zone": c.api.shard.Zone,
		"placement/region":            c.api.shard.Region,
	}
	for name, value := range labels {
		values["tags/instance/"+tagOf(name)] = value
	}
	maps.DeleteFunc(values, func(_, value string) bool { return value == "" })
	return &metadata.Instance{Machine: inspected.ID, ID: labels[LabelInstanceID], Values: values}
}

// tagOf returns the name of the tag for a label. Names of tags have no slash.
func tagOf(label string) string {
	if own, ok := strings.CutPrefix(label, ownDomain); ok {
		return "nstance:" + own
	}
	return strings.ReplaceAll(label, "/", ":")
}

// Userdata returns the file that the container was started with, until it is removed: the
// server stores the userdata nowhere, as it contains the nonce.
func (c *containers) Userdata(ctx context.Context, i *metadata.Instance) ([]byte, error) {
	copied, err := c.api.docker.CopyFromContainer(ctx, i.Machine, client.CopyFromContainerOptions{SourcePath: UserdataPath})
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("copy the userdata of container %s: %w", i.ID, err)
	}
	defer func() { _ = copied.Content.Close() }()
	archive := tar.NewReader(copied.Content)
	header, err := archive.Next()
	if err != nil {
		return nil, fmt.Errorf("read the userdata of container %s: %w", i.ID, err)
	}
	if header.Typeflag != tar.TypeReg || header.Size > maxUserdata {
		return nil, nil // the container has replaced it
	}
	userdata, err := io.ReadAll(archive)
	if err != nil {
		return nil, fmt.Errorf("read the userdata of container %s: %w", i.ID, err)
	}
	return userdata, nil
}
