// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package server assembles and runs a shard server (docs/server.md).
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/storage"
)

// Server is one server of a shard. Only the leader of the servers of a shard
// serves operators and reconciles groups. The fields are the dependencies of the
// server; those without a default are mandatory.
type Server struct {
	// Shard is the shard's id.
	Shard string
	// ID identifies the server among those of the shard. It stays the same across
	// restarts. Default: an id that is stored in CacheDir.
	ID string
	// Host replaces the host of every address in the configuration. Default: the
	// configured hosts.
	Host string
	// Storage is the durable storage of all shards of the cluster.
	Storage storage.Store
	// CacheDir is a folder of this server alone, for data that is faster to read
	// there. It is created if it is missing.
	CacheDir string
	// Providers are the instance providers that the configuration can name.
	Providers provider.Registry
	// Listen opens a TCP listener, like net.ListenConfig.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// GRPCOptions are added before those of the server, so that interceptors
	// among them see every call, also rejected ones.
	GRPCOptions []grpc.ServerOption
	// Nameless leaves the URI of the shard out of the server's certificate, as servers of
	// other versions do.
	Nameless bool
	// ReadConfig triggers reading the configuration. Default: every two seconds.
	ReadConfig <-chan time.Time
}

// Run serves until ctx is done, and returns when everything has stopped. Then the
// error is nil. It reads the configuration first: an invalid one gives an error
// with all mistakes.
func (s *Server) Run(ctx context.Context) error {
	if err := s.run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("shard %s: %w", s.Shard, err)
	}
	return nil
}

func (s *Server) run(ctx context.Context) error {
	unlock, err := lockDir(s.CacheDir)
	if err != nil {
		return err
	}
	defer unlock()
	if s.ID, err = s.identify(); err != nil {
		return err
	}
	p, err := s.newProcess(ctx)
	if err != nil {
		return err
	}
	healthListener, err := s.Listen(ctx, p.bind.HealthAddr)
	if err != nil {
		return fmt.Errorf("listen for health checks (shard.bind.health_addr): %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.health.serve(ctx, healthListener) })
	g.Go(func() error { return p.clusterElector.Run(ctx, p.leadCluster) })
	g.Go(func() error { return p.serve(ctx, g) })
	return g.Wait()
}

// readAttempts is how often an object that a start needs is read. An invalid
// object is not read again.
const readAttempts = 3

// startTimeout limits a call to the storage while no configuration is known.
const startTimeout = 30 * time.Second

func (s *Server) startStorage() storage.Store {
	return storage.WithTimeout(s.Storage, func() time.Duration { return startTimeout })
}

// readConfig reads the configuration that the server, or a term, starts with.
func (s *Server) readConfig(ctx context.Context) (*config.Config, error) {
	var source config.Source
	var err error
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Steps: readAttempts}
	_ = wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (done bool, _ error) {
		source, err = config.Read(ctx, s.startStorage(), s.Shard)
		if err == nil || errors.Is(err, storage.ErrNotFound) {
			return true, nil
		}
		klog.FromContext(ctx).Error(err, "The configuration could not be read")
		return false, nil
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, err
	}
	return source.ParseFor(s.Shard, s.Providers)
}

// leaderID identifies this server among those of the cluster.
func (s *Server) leaderID() string {
	return s.Shard + "/" + s.ID
}
