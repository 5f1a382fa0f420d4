// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package server assembles and runs a shard server (docs/server.md).
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/registry"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
)

// Server is one server of a shard. Only the leader among the servers of a shard serves
// operators and reconciles groups. The fields are the server's dependencies; a field without
// a default is mandatory.
type Server struct {
	// Shard is the shard's id.
	Shard string
	// ID identifies the server among the servers of the shard. It stays the same across
	// restarts. Default: an id that is stored in CacheDir.
	ID string
	// Host replaces the host of every address in the configuration. Default: the
	// configured hosts.
	Host string
	// Storage is the durable storage of all shards of the cluster.
	Storage storage.Store
	// MinWriteInterval is the time that the storage needs between two writes of one object.
	MinWriteInterval time.Duration
	// CacheDir is a folder of this server alone, for data that is faster to read
	// there. It is created if it is missing.
	CacheDir string
	// Providers are the instance providers that the configuration can name.
	Providers provider.Registry
	// Listen opens a TCP listener, like net.ListenConfig.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// GRPCOptions are added before the server's own options, so that interceptors
	// among them see every call, even if it is rejected.
	GRPCOptions []grpc.ServerOption
	// Nameless leaves the URI of the shard out of the server's certificate, as
	// servers of other versions do.
	Nameless bool
	// PollInterval is the shortest interval at which the server reads the configuration and the
	// authorities. Default: two and five seconds.
	PollInterval time.Duration
	// ReadConfig triggers reading the configuration. Default: a ticker of PollInterval.
	ReadConfig <-chan time.Time
}

// Run serves until ctx is done, and returns when everything has stopped. Then the
// error is nil. It reads the configuration first: an invalid configuration gives an error
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
	c, err := source.ParseFor(s.Shard, s.Providers)
	if err != nil {
		return nil, err
	}
	if err := source.Reject(c.ValidateElections(s.MinWriteInterval)); err != nil {
		return nil, err
	}
	return c, nil
}

// leaderID identifies this server among the servers of the cluster.
func (s *Server) leaderID() string {
	return s.Shard + "/" + s.ID
}

// Options are the options of the command line.
type Options struct {
	// Shard is the shard's id.
	Shard string
	// ID identifies the server among the servers of the shard. Default: an id that is
	// generated once and stored in CacheDir.
	ID string
	// Host replaces the host of every address in the configuration unless empty.
	Host string
	// Storage is the provider of the object storage, Bucket its folder or bucket,
	// and Prefix the prefix of all keys.
	Storage, Bucket, Prefix string
	// CacheDir is a folder of this server alone.
	CacheDir string
}

// Run runs the server that the command line describes until ctx is done. An invalid
// configuration gives an
// error with all mistakes.
func Run(ctx context.Context, o Options) error {
	store, err := o.open(ctx)
	if err != nil {
		return err
	}
	if o.ID != "" {
		if err := identifier.Validate(o.ID); err != nil {
			return fmt.Errorf("--id: %w", err)
		}
	}
	server := &Server{
		Shard:     o.Shard,
		ID:        o.ID,
		Host:      o.Host,
		Storage:   store,
		CacheDir:  o.CacheDir,
		Providers: registry.Providers,

		MinWriteInterval: backend.MinWriteInterval(o.Storage),
		PollInterval:     backend.PollInterval(o.Storage),
		Listen: func(ctx context.Context, address string) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", address)
		},
	}
	return server.Run(ctx)
}

// Validate checks a configuration and writes to w that it is valid, or returns an
// error with all mistakes. The configuration is the file at path or, when that is
// empty, the one in the storage.
func Validate(ctx context.Context, o Options, path string, w io.Writer) error {
	source, c, err := o.config(ctx, path)
	if err != nil {
		return err
	}
	mistakes := append(c.ValidateElections(backend.MinWriteInterval(o.Storage)), provision.Validate(c)...)
	if err := source.Reject(mistakes); err != nil {
		return err
	}
	if _, err = fmt.Fprintf(w, "%s: shard %s of cluster %s is valid\n", source.Key, c.Shard.ID, c.ClusterID); err != nil {
		return err
	}
	for _, warning := range c.Warnings() {
		if _, err = fmt.Fprintf(w, "warning: %s\n", warning); err != nil {
			return err
		}
	}
	return nil
}

func (o Options) config(ctx context.Context, path string) (source config.Source, c *config.Config, err error) {
	if path != "" {
		if source, err = config.ReadFile(path); err == nil {
			c, err = source.Parse(registry.Providers)
		}
		return source, c, err
	}
	store, err := o.open(ctx)
	if err != nil {
		return source, nil, err
	}
	if source, err = config.Read(ctx, store, o.Shard); err == nil {
		c, err = source.ParseFor(o.Shard, registry.Providers)
	}
	return source, c, err
}

func (o Options) open(ctx context.Context) (storage.Store, error) {
	if err := identifier.Validate(o.Shard); err != nil {
		return nil, fmt.Errorf("--shard: %w", err)
	}
	return backend.Open(ctx, o.Storage, o.Bucket, o.Prefix)
}

// lockDir creates dir if it is missing, and locks it until this process exits: a cache
// belongs to one server. If a server finds its own id and boot id in the leader's lock, it
// therefore knows that it wrote the lock before a restart. The caller must call unlock when it is done.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the cache folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the cache folder: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("cache folder %s is in use by another server", dir)
		}
		return nil, fmt.Errorf("lock cache folder %s: %w", dir, err)
	}
	// Closing the file releases the lock.
	return func() { _ = file.Close() }, nil
}

// identify returns the id of the server, or else the id in the cache folder. It
// creates an id if the folder has none. The caller has locked the folder.
func (s *Server) identify() (string, error) {
	if s.ID != "" {
		return s.ID, nil
	}
	path := filepath.Join(s.CacheDir, "id")
	data, err := os.ReadFile(path)
	if err == nil && identifier.Validate(string(data)) == nil {
		return string(data), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the id of this server: %w", err)
	}
	id := strings.ToLower(rand.Text())
	// If a crash has left the file incomplete, its content is not a valid id, and is
	// replaced.
	if err := os.WriteFile(path, []byte(id), 0o600); err != nil {
		return "", fmt.Errorf("store the id of this server: %w", err)
	}
	return id, nil
}
