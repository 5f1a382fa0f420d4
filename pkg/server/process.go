// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/clientauth"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/internal/boot"
	"nstance.dev/operator/pkg/server/internal/grpcapi"
	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/internal/loadbalancers"
	"nstance.dev/operator/pkg/server/internal/reconciler"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/secrets/backend"
	"nstance.dev/operator/pkg/server/storage"
)

// process has the state that exists as long as a server runs, whether or not it leads.
type process struct {
	server *Server
	// storage is the server's storage with a timeout for each call. Its writes are not
	// fenced: a term has a storage of its own.
	storage storage.Store
	secrets secrets.Store
	// bind are the addresses to listen at.
	bind   config.Addresses
	health *health
	// network assigns the address of the leader, nil if there is no leader network.
	network *leaderNetwork
	// clusterElector elects the leader of the cluster.
	clusterElector *leader.Elector
	registrar      *registration.Registrar
	// guard admits the clients of the gates.
	guard *clientauth.Guard
	// countUnary and countStream count the calls of all services.
	countUnary  grpc.UnaryServerInterceptor
	countStream grpc.StreamServerInterceptor

	shared *shared
}

// shared has the state that the process shares with its terms. It has no storage, so that a
// term can write only to the storage that the term has, which is fenced.
type shared struct {
	shard, cacheDir string
	providers       provider.Registry
	// config is the configuration that the server started with: its immutable
	// fields are in force.
	config *config.Config
	// inForce is the configuration of the current term, or of the last term.
	inForce atomic.Pointer[config.Config]
	// readConfig reads the configuration in the storage, and readConfigTicks, if
	// not nil, triggers it during a term.
	readConfig      func(context.Context) (*config.Config, error)
	readConfigTicks <-chan time.Time
	// minWriteInterval and pollInterval are the fields of Server.
	minWriteInterval, pollInterval time.Duration
	// readAccepted reads the configuration that was in force last, or nil.
	readAccepted func(context.Context, storage.Store) (*config.Config, error)
	// rejected is why the configuration in the storage is not in force, nil if it is.
	rejected atomic.Pointer[error]
	// advertise are the addresses at which others reach the server.
	advertise config.Addresses
	// elector elects the leader of the shard.
	elector *leader.Elector
	// readSecret and readObject read the sources of instances' files.
	readSecret func(ctx context.Context, name string) ([]byte, error)
	readObject func(ctx context.Context, key string) ([]byte, error)
	// keys are the keys of the cluster, nil until they are loaded.
	keys *clusterkeys.Keys
	// certificate is the certificate that clients see, nil until the server listens.
	certificate atomic.Pointer[pki.Serving]
	// gate passes calls of operators to the current term, and agentGate calls of agents.
	// agentGate is
	// nil if the server serves no agents.
	gate      *grpcapi.Gate
	agentGate *grpcapi.AgentGate
	// registry has all metrics, reconcilerMetrics the metrics that outlive a term.
	registry          *prometheus.Registry
	reconcilerMetrics *reconciler.Metrics
	balancerMetrics   *loadbalancers.Metrics
	// serving is true while operators are served.
	serving atomic.Bool
	// blocked is why this server leads and does not serve, nil if nothing is known.
	blocked atomic.Pointer[groups.MissingError]
	// failed is why the last term ended before it served, nil if it has served.
	failed atomic.Pointer[error]
}

// newProcess reads the configuration and creates all parts that do not need the cluster's
// keys.
func (s *Server) newProcess(ctx context.Context) (*process, error) {
	c, rejected, err := s.startConfig(ctx, s.startStorage())
	if err != nil {
		return nil, err
	}
	logWarnings(klog.FromContext(ctx), c)
	bind := withHost(c.Shard.Bind, s.Host, c.Shard.LeaderNetwork != nil)
	advertise, err := s.advertised(&c.Shard, bind, net.InterfaceAddrs)
	if err != nil {
		return nil, err
	}
	sh := &shared{
		shard:            s.Shard,
		cacheDir:         s.CacheDir,
		providers:        s.Providers,
		config:           c,
		readConfig:       s.readConfig,
		readConfigTicks:  s.ReadConfig,
		minWriteInterval: s.MinWriteInterval,
		pollInterval:     s.PollInterval,
		readAccepted:     s.readAccepted,
		advertise:        advertise,
		registry:         prometheus.NewRegistry(),
	}
	sh.inForce.Store(c)
	sh.setRejected(rejected)
	p := &process{
		server:  s,
		storage: storage.WithTimeout(storage.WithMetrics(s.Storage, sh.registry), func() time.Duration { return sh.inForce.Load().Shard.RequestTimeout }),
		bind:    bind,
		shared:  sh,
	}
	// The leader of the cluster writes with other secrets, see leadCluster.
	if p.secrets, err = p.openSecrets(ctx, p.storage, context.WithCancel); err != nil {
		return nil, err
	}
	sh.readSecret = p.secrets.Get
	sh.readObject = func(ctx context.Context, key string) ([]byte, error) {
		object, err := p.storage.Get(ctx, key)
		return object.Data, err
	}
	p.guard = clientauth.New(klog.FromContext(ctx), p.storage, s.Shard)
	p.countUnary, p.countStream = grpcapi.Count(sh.registry)
	p.clusterElector = p.newElector(ctx, storage.ClusterLeaderKey, c.ClusterElection, nil)
	sh.elector = p.newElector(ctx, storage.ShardLeaderKey(s.Shard), c.Shard.Election, p.hasLed)
	sh.gate = grpcapi.NewGate(sh.elector.Leading, p.leaderMessage)
	sh.gate.Blocked = p.blocked
	if bind.AgentAddr != "" {
		sh.agentGate = grpcapi.NewAgentGate(sh.elector.Leading, p.leaderMessage)
		sh.agentGate.Blocked = p.blocked
	}
	sh.registerMetrics()
	if p.network, err = p.newLeaderNetwork(c); err != nil {
		return nil, err
	}
	p.health = newHealth(sh.registry, p.ready, p.notServing, sh.configRejected)
	return p, nil
}

func (p *process) newElector(ctx context.Context, key string, election config.Election, used func(context.Context) (bool, error)) *leader.Elector {
	start, err := boot.ID()
	if err != nil {
		klog.FromContext(ctx).Error(err, "This server cannot be told from a server on a copy of its machine")
	}
	return leader.New(leader.Options{
		Store:    p.storage,
		Key:      key,
		ID:       p.server.leaderID(),
		Boot:     start,
		Address:  p.shared.advertise.ElectionAddr,
		Election: election,
		Used:     used,
	})
}

// hasLed reports whether a server has led the shard before. The leader of the cluster needs
// no such rule: the objects that it writes depend on no others.
func (p *process) hasLed(ctx context.Context) (bool, error) {
	_, err := config.ReadAccepted(ctx, p.storage, p.server.Shard)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// otherLeader returns the lock of another server that leads.
func (p *process) otherLeader() (leader.Lock, bool) {
	lock, known := p.shared.elector.Leader()
	return lock, known && lock.LeaderID != "" && !p.shared.elector.Own(lock)
}

// ready reports whether this server serves, or another server leads.
func (p *process) ready() bool {
	_, standby := p.otherLeader()
	return p.shared.serving.Load() || standby
}

// blocked returns why this server leads and does not serve, nil if no reason is known.
func (p *process) blocked() error {
	if missing := p.shared.blocked.Load(); missing != nil && p.shared.elector.Leading() {
		return missing
	}
	return nil
}

// notServing returns why this server leads and does not serve, nil if no reason is known.
func (p *process) notServing() error {
	if err := p.blocked(); err != nil {
		return err
	}
	if failed := p.shared.failed.Load(); failed != nil && p.shared.elector.Leading() {
		return *failed
	}
	return nil
}

// leaderMessage returns which server an operator has to call instead of this server.
func (p *process) leaderMessage() string {
	if lock, known := p.shared.elector.Leader(); known && lock.LeaderID != "" && !p.shared.elector.Leading() {
		return fmt.Sprintf("shard %s is led by %s at %s", p.server.Shard, lock.LeaderID, lock.LeaderAddr)
	}
	return fmt.Sprintf("shard %s has no leader yet", p.server.Shard)
}

// openSecrets returns the secrets of the configuration that the server started with. If a
// service has them, each call has a timeout, and write allows the calls that write; store
// does the same for secrets in the storage.
func (p *process) openSecrets(ctx context.Context, store storage.Store, write secrets.ContextFunc) (secrets.Store, error) {
	c := p.shared.config.Secrets
	timeout := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, p.shared.inForce.Load().Shard.RequestTimeout)
	}
	// Opening the secrets reads the encryption keys.
	opening, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	opened, err := backend.Open(opening, c, store)
	if err != nil {
		return nil, err
	}
	if c.Provider != config.SecretsInStorage {
		opened = secrets.WithContexts(opened, timeout, func(ctx context.Context) (context.Context, context.CancelFunc) {
			allowed, cancel := write(ctx)
			limited, cancelTimeout := timeout(allowed)
			return limited, func() { cancelTimeout(); cancel() }
		})
	}
	return secrets.WithCache(opened, c.CacheTTL), nil
}

// missingInterval is how often a server looks for an object whose loss prevents a term. Only
// an administrator can restore it.
const missingInterval = 10 * time.Second

// termAttempts is how often a term is started that never serves. Then the server
// stops and releases the lock: another server may succeed, and a supervisor
// restarts this one.
const termAttempts = 3

// lead leads until ctx, the context of the leadership, is done. The machine has the address
// of the leader before a term begins, and as long as a term may serve.
func (p *process) lead(ctx context.Context) error {
	if p.network == nil {
		return p.runTerms(ctx)
	}
	err := p.network.lead(ctx, p.runTerms)
	if err != nil && ctx.Err() == nil {
		p.shared.failed.Store(&err)
	}
	return err
}

// runTerms runs terms until ctx, the context of the leadership, is done. If a term stops
// early, such as after a write by another writer, the next term follows. While the groups are
// missing from the storage, the server leads without serving: no other server could do more.
func (p *process) runTerms(ctx context.Context) error {
	first := wait.Backoff{Duration: time.Second, Factor: 2, Steps: termAttempts}
	for backoff := first; ; {
		served, err := p.runTerm(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if missing, ok := errors.AsType[*groups.MissingError](err); ok {
			p.awaitGroups(ctx, missing)
			backoff = first
			continue
		}
		if served {
			backoff = first
		} else if err != nil {
			p.shared.failed.Store(&err)
		}
		if _, invalid := errors.AsType[*config.InvalidError](err); invalid || backoff.Steps == 1 {
			return err
		}
		delay := backoff.Step()
		klog.FromContext(ctx).Error(err, "The term stopped early, starting another", "delay", delay)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

// awaitGroups waits a while, and reports the missing groups meanwhile.
func (p *process) awaitGroups(ctx context.Context, missing *groups.MissingError) {
	klog.FromContext(ctx).Error(missing, "Not serving, will look for the groups again", "delay", missingInterval)
	p.shared.blocked.Store(missing)
	select {
	case <-ctx.Done():
	case <-time.After(missingInterval):
	case <-p.shared.readConfigTicks:
	}
}

// keysRetryDelay is the delay before the cluster's keys are created or loaded
// again.
const keysRetryDelay = time.Second

// leadCluster creates the keys of the cluster if they are missing. It stays the
// leader afterwards, because registrations require it.
func (p *process) leadCluster(ctx context.Context) error {
	store := p.clusterElector.Fence(p.storage)
	secrets, err := p.openSecrets(ctx, store, p.clusterElector.Context)
	if err != nil {
		return err
	}
	err = wait.PollUntilContextCancel(ctx, keysRetryDelay, true, func(ctx context.Context) (done bool, _ error) {
		_, err := clusterkeys.Ensure(ctx, store, secrets, p.shared.config.ClusterID)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The keys of the cluster could not be created, will retry")
		}
		return err == nil, nil
	})
	<-ctx.Done()
	return err
}

// loadKeys waits until the leader of the cluster has created the keys.
func (p *process) loadKeys(ctx context.Context) error {
	failures, waiting := 0, false
	return wait.PollUntilContextCancel(ctx, keysRetryDelay, true, func(ctx context.Context) (done bool, _ error) {
		loaded, err := clusterkeys.Load(ctx, p.storage, p.secrets)
		switch {
		case err == nil:
			p.setKeys(loaded)
			return true, nil
		case errors.Is(err, storage.ErrNotFound):
			if !waiting {
				klog.FromContext(ctx).Info("Waiting for the leader of the cluster to create the keys")
			}
			waiting = true
			return false, nil
		}
		if failures++; failures == readAttempts {
			return false, fmt.Errorf("read the keys of the cluster: %w", err)
		}
		klog.FromContext(ctx).Error(err, "The keys of the cluster could not be read, will retry", "attempt", failures)
		return false, nil
	})
}

func (p *process) setKeys(keys *clusterkeys.Keys) {
	p.shared.keys = keys
	p.guard.SetAuthority(keys.Authority)
	p.registrar = &registration.Registrar{
		ClusterID: p.shared.config.ClusterID,
		Keys:      keys,
		Store:     p.clusterElector.Fence(p.storage),
		Leading:   p.clusterElector.Leading,
		Config:    p.shared.inForce.Load,
	}
	p.shared.gate.Issuer, p.shared.gate.Authority = p.registrar, keys.Authority
}
