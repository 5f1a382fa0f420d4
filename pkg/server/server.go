// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package server puts a shard server together and runs it.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/api"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/keys"
	"nstance.dev/operator/pkg/server/leader"
	"nstance.dev/operator/pkg/server/reconciler"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
)

// Server is one server of a shard. Of all servers of a shard one leads: it alone
// serves operators and works on groups. The fields are what a server is made of;
// those without a default are mandatory.
type Server struct {
	// Shard is the shard's id.
	Shard string
	// ID is this server's among those of the shard. It stays the same when the
	// server is started again. Default: one that is kept in CacheDir.
	ID string
	// Host replaces that of every address in the configuration. Default: none,
	// the configuration decides.
	Host string
	// Storage holds what is durable, of all shards of the cluster.
	Storage storage.Store
	// CacheDir is a folder of this server's alone, for what is only quicker to
	// find there. It is made when missing.
	CacheDir string
	// NewProvider returns the provider of instances for one term of leading. Each
	// call to the outside that changes something has to be made with a context of
	// bound, which ends when this server may not act any more.
	NewProvider func(c *config.Config, bound BoundFunc) (instance.Provider, error)
	// Listen opens a TCP listener. It is net.ListenConfig's, unless the caller
	// wants to hold the connections.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// GRPCOptions are added before those of the server, so that interceptors
	// among them see every call, refused ones too.
	GRPCOptions []grpc.ServerOption
	// ReadConfig tells when to look at the configuration. Default: every two
	// seconds.
	ReadConfig <-chan time.Time
}

// BoundFunc returns the context for one call, which has a deadline.
type BoundFunc = func(context.Context) (context.Context, context.CancelFunc)

// process is what lives as long as a server does, whether it leads or not.
type process struct {
	*Server
	// config is what the server began with, and what cannot change.
	config *config.Config
	// inForce is the configuration of the present term, or of the last one.
	inForce atomic.Pointer[config.Config]
	// bind are the addresses to listen at, advertise those to be found at.
	bind, advertise config.Addresses
	// storage is that of the server, with calls that end.
	storage  storage.Store
	secrets  *secrets.Store
	registry *prometheus.Registry
	health   *health
	// shard and cluster elect who leads the one and the other.
	shard, cluster *leader.Elector
	// gate passes calls to the term that there is.
	gate        *api.Gate
	reconciling *reconciler.Metrics
	// serving is true while operators are served.
	serving atomic.Bool

	// keys are those of the cluster, and registrar works with them.
	keys      *keys.Keys
	registrar *registration.Registrar
}

// Run serves until ctx ends, and returns when everything has stopped. Then the
// error is nil. It reads the configuration first: one that is wrong gives an
// error with all mistakes.
func (s *Server) Run(ctx context.Context) error {
	if err := s.run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("shard %s: %w", s.Shard, err)
	}
	return nil
}

func (s *Server) run(ctx context.Context) error {
	unlock, err := lockFolder(s.CacheDir)
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
		return fmt.Errorf("listening for health checks (shard.bind.health_addr): %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.health.serve(ctx, healthListener) })
	g.Go(func() error { return p.cluster.Run(ctx, p.leadCluster) })
	g.Go(func() error { return p.serve(ctx, g) })
	return g.Wait()
}

// newProcess reads the configuration and makes what does not need the cluster's
// keys.
func (s *Server) newProcess(ctx context.Context) (*process, error) {
	c, err := s.readConfig(ctx)
	if err != nil {
		return nil, err
	}
	p := &process{Server: s, config: c, registry: prometheus.NewRegistry()}
	p.inForce.Store(c)
	p.storage = storage.WithTimeout(s.Storage, func() time.Duration { return p.inForce.Load().Shard.RequestTimeout })
	p.bind = withHost(c.Shard.Bind, s.Host)
	p.advertise = c.Shard.Advertised(p.bind, cmp.Or(s.Host, machineHost()))
	if p.secrets, err = openSecrets(c.Secrets, p.storage); err != nil {
		return nil, err
	}
	p.shard = p.elector(storage.ShardLeaderKey(s.Shard), c.Shard.Election)
	p.cluster = p.elector(storage.ClusterLeaderKey, c.ClusterElection)
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p.health = newHealth(p.registry, p.ready)
	p.reconciling = reconciler.NewMetrics(p.registry)
	p.gate = api.NewGate(p.shard.Leading, p.whoLeads)
	return p, nil
}

// readAttempts is how often an object that a start needs is read before it is
// given up (server document). One that is there and wrong is not read again.
const readAttempts = 3

// readConfig reads the configuration that the server starts with.
func (s *Server) readConfig(ctx context.Context) (*config.Config, error) {
	for attempt := 1; ; attempt++ {
		source, err := config.Read(ctx, s.Storage, s.Shard)
		if err == nil {
			return source.ParseFor(s.Shard)
		}
		if attempt == readAttempts || errors.Is(err, storage.ErrNotFound) {
			return nil, err
		}
		klog.FromContext(ctx).Error(err, "The configuration was not read, will retry", "attempt", attempt)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(attempt) * time.Second):
		}
	}
}

// leaderID is this server's among those of the cluster.
func (s *Server) leaderID() string {
	return s.Shard + "/" + s.ID
}

func (p *process) elector(key string, election config.Election) *leader.Elector {
	return leader.New(leader.Options{
		Store:    p.storage,
		Key:      key,
		ID:       p.leaderID(),
		Address:  p.advertise.ElectionAddr,
		Election: election,
	})
}

// ready tells whether the server serves, or stands by for one that leads.
func (p *process) ready() bool {
	if p.serving.Load() {
		return true
	}
	lock, known := p.shard.Leader()
	return known && lock.LeaderID != "" && lock.LeaderID != p.leaderID()
}

// whoLeads tells operators why they are refused.
func (p *process) whoLeads() string {
	if lock, known := p.shard.Leader(); known && lock.LeaderID != "" && !p.shard.Leading() {
		return fmt.Sprintf("shard %s is led by %s at %s", p.Shard, lock.LeaderID, lock.LeaderAddr)
	}
	return fmt.Sprintf("shard %s has no leader yet", p.Shard)
}

// openSecrets returns the secrets of the storage with the keys that the
// configuration names.
func openSecrets(c config.Secrets, store storage.Store) (*secrets.Store, error) {
	key, err := secrets.ReadKey(c.EncryptionKey)
	if err != nil {
		return nil, fmt.Errorf("reading the encryption key (cluster.secrets.encryption_key): %w", err)
	}
	old := make([][]byte, len(c.OldEncryptionKeys))
	for i, source := range c.OldEncryptionKeys {
		if old[i], err = secrets.ReadKey(source); err != nil {
			return nil, fmt.Errorf("reading an old encryption key (cluster.secrets.old_encryption_keys[%d]): %w", i, err)
		}
	}
	return secrets.New(store, key, old...)
}
