// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/connlimit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/docker/metadata"
)

const (
	// maxMetadataConnections limits the connections of all containers, and
	// maxConnectionsPerContainer the connections of each. An agent needs one.
	maxMetadataConnections     = 1024
	maxConnectionsPerContainer = 16
	// listenRetry is the delay before the service tries to bind its address again: the
	// former leader may still use it, or the network does not exist yet.
	listenRetry = time.Second
)

// validateMetadata returns every rule that the options of the metadata service break.
func (o *Options) validateMetadata(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if o.MetadataAddress != "" {
		address, err := netip.ParseAddrPort(o.MetadataAddress)
		if err != nil || !address.Addr().Is4() || address.Port() == 0 || address.Addr().IsUnspecified() || address.Addr().IsLoopback() {
			errs = append(errs, field.Invalid(path.Child("metadata_addr"), o.MetadataAddress,
				`must be the IPv4 address and a port of this machine in the network of the containers, such as "172.17.0.1:8996"`))
		}
	}
	if o.Notices != "" && o.MetadataAddress == "" {
		errs = append(errs, field.Forbidden(path.Child("notices"), "only the metadata service has notices, and metadata_addr is not set"))
	}
	if o.Notices != "" && !isCleanPath(o.Notices) {
		errs = append(errs, field.Invalid(path.Child("notices"), o.Notices, "must be an absolute path"))
	}
	return errs
}

// withMetadata is a provider that also serves the metadata of its containers.
type withMetadata struct {
	*cloud.Provider
	address string
	source  metadata.Source
}

// Run implements provider.Provider. If the metadata service fails, the provider still creates
// and deletes instances.
func (p *withMetadata) Run(ctx context.Context, changed func(instance.GroupKey), failed provider.FailureFunc) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() { p.serveMetadata(ctx) })
	return p.Provider.Run(ctx, changed, failed)
}

// serveMetadata serves until ctx is done.
func (p *withMetadata) serveMetadata(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for ctx.Err() == nil {
		listener, err := listenMetadata(ctx, p.address)
		if err == nil {
			logger.Info("Serving metadata", "address", p.address)
			listener = connlimit.Total(connlimit.PerAddress(listener, maxConnectionsPerContainer), maxMetadataConnections)
			err = metadata.Serve(ctx, listener, p.source)
		}
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "Failed to serve metadata, will retry", "address", p.address)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry):
		}
	}
}

// listenMetadata listens for containers of this host. A TTL of 1 keeps responses from being
// routed, so that a Pod behind a container, or another host, gets no response.
func listenMetadata(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		controlErr := conn.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_TTL, 1)
		})
		return errors.Join(controlErr, err)
	}}
	listener, err := config.Listen(ctx, "tcp4", address)
	if err != nil {
		return nil, fmt.Errorf("listen for metadata (shard.infra.options.metadata_addr): %w", err)
	}
	return listener, nil
}

const (
	// maxUserdata is larger than any userdata, in bytes.
	maxUserdata = 2 << 20
	// maxListAge is how long a list of addresses is used. A second container with the same
	// address is noticed by then.
	maxListAge = 5 * time.Second
)

// containers is the source of the metadata service. It inspects a container for every
// request: if an address passes from a container to another, no request gets the metadata
// of the former container.
type containers struct {
	api     *API
	notices string

	mu sync.Mutex
	// byAddress maps addresses to the ids of containers, as a list requested at listed has
	// shown them.
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

// list returns the ids of all containers with an address, including containers of others. The
// list was requested later than after; waiting callers share one list.
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
// is empty if the container does not belong to the shard.
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
	// The id becomes a file name.
	if !isOurs(c.api.shard, s.labels) || !isIdentifier(s.labels[LabelInstanceID]) {
		return &metadata.Instance{Machine: inspected.Container.ID}, nil
	}
	return c.describe(inspected.Container, address), nil
}

func isIdentifier(text string) bool { return identifier.Validate(text) == nil }

// describe returns the metadata of a container under the names that AWS uses
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html).
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

// tagOf returns the name of the tag for a label. Names of tags in metadata have no slash.
func tagOf(label string) string {
	if own, ok := strings.CutPrefix(label, ownDomain); ok {
		return "nstance:" + own
	}
	return strings.ReplaceAll(label, "/", ":")
}

// Userdata returns the userdata file with which the container was started. The server stores
// no copy, because userdata contains the nonce. If the file was removed, it returns nil.
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
		return nil, nil // the container has replaced the file
	}
	userdata, err := io.ReadAll(archive)
	if err != nil {
		return nil, fmt.Errorf("read the userdata of container %s: %w", i.ID, err)
	}
	return userdata, nil
}

const (
	// noticePeriod is the default time from a notice to the termination, the same as on AWS
	// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html).
	noticePeriod = 2 * time.Minute
	// maxNotice is larger than any notice, in bytes.
	maxNotice = 4 << 10
)

// noticeActions are the actions of AWS's notices. The first is the default.
var noticeActions = []string{"terminate", "stop", "hibernate"}

// isCleanPath reports whether a path is absolute and has no redundant parts.
func isCleanPath(path string) bool { return filepath.IsAbs(path) && filepath.Clean(path) == path }

// Notice returns the notice of an instance, from the file with its name in the folder of
// notices. It reads the file at every request, so that a restart of the server loses nothing.
func (c *containers) Notice(i *metadata.Instance) (*metadata.Notice, error) {
	if c.notices == "" {
		return nil, nil
	}
	notice, err := readNotice(filepath.Join(c.notices, i.ID))
	if err != nil {
		return nil, fmt.Errorf("read the notice of instance %s: %w", i.ID, err)
	}
	return notice, nil
}

// readNotice reads a notice, or nil if there is no file. An empty file is a notice.
func readNotice(path string) (*metadata.Notice, error) {
	// Opening another kind of file could block.
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, maxNotice))
	if err != nil {
		return nil, err
	}
	content := struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}{Action: noticeActions[0], Time: info.ModTime().Add(noticePeriod)}
	if len(strings.TrimSpace(string(data))) > 0 {
		if err := json.Unmarshal(data, &content); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if !slices.Contains(noticeActions, content.Action) {
		return nil, fmt.Errorf("%s has the action %q, known are %s", path, content.Action, strings.Join(noticeActions, ", "))
	}
	return &metadata.Notice{Action: content.Action, Time: content.Time}, nil
}
