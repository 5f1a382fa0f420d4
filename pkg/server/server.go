// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package server puts a shard server together and runs it.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/api"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/reconciler"
)

// Server is a shard server. Its fields are what it is made of; all but the last
// two are mandatory.
type Server struct {
	// Config is the configuration to begin with. The file that it was read from
	// is read again while the server runs.
	Config *config.Config
	// DataDir is the folder of what must survive a restart. It is made when
	// missing, and must be this server's alone.
	DataDir  string
	Provider instance.Provider
	// Listen opens a TCP listener. It is net.ListenConfig's, unless the caller
	// wants to hold the connections.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// GRPCOptions are added before those of the server, so that interceptors
	// among them see every call, refused ones too.
	GRPCOptions []grpc.ServerOption
	// ReadConfig tells when to look at the configuration file. Default: every
	// two seconds.
	ReadConfig <-chan time.Time
}

// Run serves until ctx ends, and returns when everything has stopped. Then the
// error is nil.
//
// Operators are served from when all instances are known: before that, groups
// would look as if they had none.
func (s *Server) Run(ctx context.Context) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	health := newHealth(registry)
	healthListener, err := s.Listen(ctx, s.Config.Shard.Bind.HealthAddr)
	if err != nil {
		return fmt.Errorf("shard %s: listening for health checks (shard.bind.health_addr): %w", s.Config.Shard.ID, err)
	}

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return health.serve(ctx, healthListener) })
	g.Go(func() error { return s.run(ctx, g, registry, health) })
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("shard %s: %w", s.Config.Shard.ID, err)
	}
	return nil
}

// run starts the parts in the order in which they need each other.
func (s *Server) run(ctx context.Context, g *errgroup.Group, registry prometheus.Registerer, health *health) error {
	logger := klog.FromContext(ctx)
	store, err := groups.Open(ctx, s.Config, filepath.Join(s.DataDir, "groups"))
	if err != nil {
		return err
	}
	board, failures := api.NewBoard(store, s.Provider), api.NewErrors()
	reconciler := reconciler.New(store, s.Provider, failures.ReportInstance)
	changed := func(keys ...instance.GroupKey) {
		board.Refresh(keys...)
		for _, key := range keys {
			reconciler.Enqueue(key)
		}
	}
	changedOne := func(key instance.GroupKey) { changed(key) }
	configuration := &configuration{
		path:    s.Config.Source.Path,
		store:   store,
		errors:  failures,
		changed: func() { changed(store.Keys()...) },
	}
	operators, err := s.newOperatorServer(logger, registry, &api.OperatorService{
		Store:         store,
		Instances:     s.Provider,
		Board:         board,
		Errors:        failures,
		Configuration: configuration,
		Changed:       changedOne,
	})
	if err != nil {
		return err
	}
	g.Go(func() error { return s.Provider.Run(ctx, changedOne, failures.ReportInstance) })
	select {
	case <-ctx.Done():
		return nil
	case <-s.Provider.Synced():
	}

	// What can go wrong has by now, or does here: no instance is made by a
	// server that will not serve.
	listener, err := s.Listen(ctx, s.Config.Shard.Bind.OperatorAddr)
	if err != nil {
		return fmt.Errorf("listening for operators (shard.bind.operator_addr): %w", err)
	}
	// Groups that have instances but are no more come from the provider.
	changed(store.Keys()...)
	g.Go(func() error {
		reconciler.Run(ctx)
		return nil
	})
	ticks := s.ReadConfig
	if ticks == nil {
		ticker := time.NewTicker(readAgainAfter)
		defer ticker.Stop()
		ticks = ticker.C
	}
	g.Go(func() error {
		configuration.follow(ctx, ticks)
		return nil
	})
	logger.Info("Serving operators", "shard", s.Config.Shard.ID, "address", listener.Addr().String(), "groups", len(store.Keys()))
	health.ready.Store(true)
	return serveGRPC(ctx, operators, listener, func() {
		health.ready.Store(false)
		board.Close()
		failures.Close()
	})
}
