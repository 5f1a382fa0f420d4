// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/connlimit"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/docker/metadata"
)

const (
	// maxMetadataConnections bounds the connections of all containers, and
	// maxConnectionsPerContainer those of one. An agent has one.
	maxMetadataConnections     = 1024
	maxConnectionsPerContainer = 16
	// listenRetry is the delay after the address of the service could not be bound: the
	// server that led before may still have it, or the network does not exist yet.
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

// Run implements provider.Provider. Whatever happens to the service, instances are created
// and deleted.
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
			logger.Error(err, "Serving metadata failed, will retry", "address", p.address)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry):
		}
	}
}

// listenMetadata listens for containers of this machine. No packet of a response may be
// routed: one that is for a Pod behind a container, or for another machine, is lost.
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
