// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/agents/agentfiles"
	"nstance.dev/operator/pkg/server/internal/agents/agenthealth"
	"nstance.dev/operator/pkg/server/internal/cache"
	"nstance.dev/operator/pkg/server/internal/grpcapi"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/internal/loadbalancers"
	"nstance.dev/operator/pkg/server/internal/reconciler"
	"nstance.dev/operator/pkg/server/internal/stock"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
)

// syncTimeouts is for how many request timeouts a term waits until the provider
// knows all instances: a large list takes several requests.
const syncTimeouts = 4

// term has the state that exists while a server leads its shard. Each term is created from
// the storage and the provider, and has no state of an earlier term: another server may have
// led in between.
type term struct {
	shared *shared
	// storage rejects writes once the server no longer leads. A term must not have
	// any other storage.
	storage storage.Store
	// stop cancels the term early.
	stop       context.CancelCauseFunc
	groups     *groups.Store
	cache      *cache.DB
	provider   provider.Provider
	instances  *instancestore.Store
	statuses   *grpcapi.StatusCache
	failures   *grpcapi.Errors
	events     *grpcapi.InstanceEvents
	reconciler *reconciler.Reconciler
	hashes     *groupHashes
	// targets registers instances with load balancers. It is nil if the
	// provider has no load balancers.
	targets *loadbalancers.Syncer
	// health has the reports of agents, and files sends them files. files is nil if the
	// server serves no agents.
	health *agenthealth.Tracker
	files  *agentfiles.Pusher
	// started is closed when all fields above are set.
	started chan struct{}
}

// runTerm reports whether operators were served.
func (p *process) runTerm(ctx context.Context) (served bool, err error) {
	termCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t := &term{shared: p.shared, storage: p.shared.elector.Fence(p.storage), stop: stop, started: make(chan struct{})}
	if err := t.open(termCtx); err != nil {
		return false, err
	}
	g, groupCtx := errgroup.WithContext(termCtx)
	g.Go(func() error { return t.provider.Run(groupCtx, t.instanceChanged, t.failures.ReportInstance) })
	g.Go(func() error {
		if err := t.start(groupCtx); err != nil {
			return err
		}
		served = true
		return t.serve(groupCtx)
	})
	err = g.Wait()
	return served, errors.Join(err, context.Cause(termCtx), t.cache.Close())
}

// open opens the cache, the groups and the provider.
func (t *term) open(ctx context.Context) (err error) {
	if t.cache, err = cache.Open(ctx, filepath.Join(t.shared.cacheDir, t.shared.shard+".sqlite")); err != nil {
		return err
	}
	if err := t.openGroups(ctx); err != nil {
		return errors.Join(err, t.cache.Close())
	}
	c := t.groups.Config()
	shard := provider.Shard{ClusterID: c.ClusterID, ID: c.Shard.ID, Region: c.Shard.Infra.Region, Zone: c.Shard.Infra.Zone}
	if t.provider, err = c.Shard.Infra.Options.NewProvider(shard, t.callContext); err != nil {
		return errors.Join(err, t.cache.Close())
	}
	t.failures, t.events = grpcapi.NewErrors(), grpcapi.NewInstanceEvents()
	return nil
}

// start waits until all instances are known and have a record: before that, groups would seem
// to have no instances. It gives up after a while: another server may be able to reach the
// provider.
func (t *term) start(ctx context.Context) (err error) {
	timeout := time.NewTimer(syncTimeouts * t.groups.Config().Shard.RequestTimeout)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return errors.New("the provider did not list its instances in time")
	case <-t.provider.Synced():
	}
	t.health = t.newHealth()
	options := instancestore.Options{
		Storage:  t.storage,
		Cache:    t.cache,
		Provider: t.provider,
		Shard:    t.shared.shard,
		Clock:    clock.RealClock{},
		Stale:    t.cacheIsStale(ctx),
		Outdated: t.stop,
	}
	if provider.RunsAgent(t.groups.Config().Shard.Infra.Options) {
		options.Agents = t.health
	}
	t.instances, err = instancestore.Open(ctx, options)
	if err != nil {
		return err
	}
	if expecter, ok := t.provider.(provider.Expecter); ok {
		expecter.Expect(t.instances.Former())
	}
	if err := t.cache.SetLeadershipID(ctx, t.shared.elector.LeadershipID()); err != nil {
		klog.FromContext(ctx).Error(err, "The cache will not be used after the next start")
	}
	if err := t.groups.CheckPresent(ctx, t.usedGroups()); err != nil {
		return err
	}
	// After the groups are stored, so that a next term can convert them again.
	if err := config.Accept(ctx, exclusiveStore{t.storage, t.stop}, t.shared.shard, t.groups.Config().Source); err != nil {
		return err
	}
	shortfalls := &reconciler.Shortfalls{}
	capacity := &stock.Stock{}
	orders := &reconciler.DeletionOrders{Expiry: func() config.Expiry { return t.groups.Config().Shard.Expiry }, Stock: capacity}
	t.statuses = grpcapi.NewStatusCache(grpcapi.StatusOptions{
		Groups: t.groups, Instances: t.instances, Nodes: t.provider, Shortfalls: shortfalls, DeletionOrders: orders, Candidates: capacity,
	})
	specs := provision.New(provision.Options{
		Config:       t.groups.Config,
		Addresses:    t.shared.advertise,
		AuthorityPEM: t.shared.keys.Authority.CertificatePEM,
		Nonces:       registration.NewNonceSigner(t.shared.keys.Nonce),
	})
	if err := t.openTargets(); err != nil {
		return err
	}
	reconcilerOptions := reconciler.Options{
		Groups:      t.groups,
		Instances:   t.instances,
		Provider:    t.provider,
		Specs:       specs,
		Events:      t.events,
		Changed:     func(key instance.GroupKey) { t.statuses.RefreshSoon(key) },
		Failed:      t.failures.ReportInstance,
		CallContext: t.callContext,
		Metrics:     t.shared.reconcilerMetrics,
		Losses:      instance.AcceptedLosses{Storage: t.storage, Shard: t.shared.shard},
		Shortfalls:  shortfalls,

		DeletionOrders: orders,
		Stock:          capacity,
	}
	if t.targets != nil {
		reconcilerOptions.Targets = t.targets
	}
	t.reconciler = reconciler.New(reconcilerOptions)
	t.hashes = newGroupHashes(t.groups, t.cache)
	if err := t.reconciler.Adopt(ctx); err != nil {
		return err
	}
	if t.shared.agentGate != nil {
		// Run follows, which stops the goroutines that start here.
		t.files = t.newFiles(specs)
	}
	close(t.started)
	return nil
}

// usedGroups returns the groups that have an instance, with or without a record.
func (t *term) usedGroups() []instance.GroupKey {
	keys := t.instances.Recorded()
	for _, vm := range t.instances.Unrecorded() {
		keys = append(keys, vm.Group)
	}
	return keys
}

// cacheIsStale reports whether another server may have led since the cache was
// written.
func (t *term) cacheIsStale(ctx context.Context) bool {
	id, err := t.cache.LeadershipID(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The cache is not used")
		return true
	}
	return id != t.shared.elector.LeadershipID()
}

// callContext returns the context of one call that only the leader may make. Writes to the
// storage end with the present lease nevertheless, because they are fenced. A call to the
// provider may take longer than a lease.
func (t *term) callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelLease := t.shared.elector.Follow(ctx)
	ctx, cancelTimeout := context.WithTimeout(ctx, t.groups.Config().Shard.RequestTimeout)
	return ctx, func() {
		cancelTimeout()
		cancelLease()
	}
}

// serve serves operators and reconciles groups until ctx is done.
func (t *term) serve(ctx context.Context) error {
	reloader := &configReloader{
		storage:          t.storage,
		minWriteInterval: t.shared.minWriteInterval,
		shard:            t.shared.shard,
		providers:        t.shared.providers,
		groups:           t.groups,
		errors:           t.failures,
		rejected:         t.shared.setRejected,
		changed: func() {
			t.shared.inForce.Store(t.groups.Config())
			t.hashes.enqueue()
			t.groupsChanged(t.allKeys()...)
		},
	}
	t.groupsChanged(t.allKeys()...)
	collector := &reconciler.Collector{Groups: t.groups, Instances: t.instances}
	t.shared.registry.MustRegister(collector)
	defer t.shared.registry.Unregister(collector)
	// The gate is closed before the reconciler is waited for, which may take long.
	var running sync.WaitGroup
	defer running.Wait()
	defer t.serveTargets(ctx, &running)()
	capacity, _ := t.provider.(provider.CapacityChecker)
	closeGate := t.shared.gate.Open(&grpcapi.OperatorService{
		Store:          t.groups,
		Instances:      t.instances,
		Statuses:       t.statuses,
		Errors:         t.failures,
		InstanceEvents: t.events,
		Configuration:  reloader,
		Health:         t.health,
		Capacity:       capacity,
		Changed: func(key instance.GroupKey) {
			t.hashes.enqueue()
			t.groupsChanged(key)
		},
	})
	defer closeGate()
	defer t.serveAgents(ctx, &running)()
	t.shared.blocked.Store(nil)
	t.shared.failed.Store(nil)
	t.shared.serving.Store(true)
	defer t.shared.serving.Store(false)
	klog.FromContext(ctx).Info("Serving operators", "shard", t.shared.shard, "groups", len(t.groups.Keys()))

	running.Go(func() { t.reconciler.Run(ctx) })
	running.Go(func() { t.hashes.run(ctx) })
	ticks := t.shared.readConfigTicks
	if ticks == nil {
		ticker := time.NewTicker(max(reloadInterval, t.shared.pollInterval))
		defer ticker.Stop()
		ticks = ticker.C
	}
	reloader.run(ctx, ticks)
	return nil
}

// allKeys returns the configured groups and the deleted groups that still have
// instances.
func (t *term) allKeys() []instance.GroupKey {
	keys := slices.Concat(t.groups.Keys(), t.instances.Keys())
	slices.SortFunc(keys, instance.GroupKey.Compare)
	return slices.Compact(keys)
}

// instanceChanged is called after an instance of a group has changed.
func (t *term) instanceChanged(key instance.GroupKey) {
	if t.hasStarted() {
		t.statuses.RefreshSoon(key)
		t.enqueue(key)
	}
}

// groupsChanged updates the status of groups and enqueues them.
func (t *term) groupsChanged(keys ...instance.GroupKey) {
	if t.hasStarted() {
		t.statuses.Refresh(keys...)
		t.enqueue(keys...)
	}
}

// hasStarted reports whether the term has started. Before, changes count for nothing: serve begins
// with all groups.
func (t *term) hasStarted() bool {
	select {
	case <-t.started:
		return true
	default:
		return false
	}
}

// enqueue enqueues groups that have changed.
func (t *term) enqueue(keys ...instance.GroupKey) {
	if t.targets != nil {
		t.targets.Enqueue()
	}
	if t.files != nil {
		t.files.GroupsChanged(keys...)
	}
	for _, key := range keys {
		t.reconciler.Enqueue(key)
	}
}

// openTargets creates the syncer that registers instances with load balancers during the
// term.
func (t *term) openTargets() error {
	c := t.groups.Config()
	balancers, ok := t.provider.(provider.LoadBalancers)
	if !ok {
		if len(c.LoadBalancers) > 0 {
			return fmt.Errorf("provider %q has no load balancers, although its options have", c.Shard.Infra.Provider)
		}
		return nil
	}
	t.targets = loadbalancers.New(loadbalancers.Options{
		Balancers:   balancers,
		VM:          t.provider.Get,
		Instances:   t.instances,
		Groups:      t.groups,
		Agents:      provider.RunsAgent(c.Shard.Infra.Options),
		CallContext: t.callContext,
		Changed:     func(key instance.GroupKey) { t.reconciler.Enqueue(key) },
		Failed:      t.failures.ReportInstance,
		FailedList:  t.failures.ReportShard,
		Metrics:     t.shared.balancerMetrics,
	})
	return nil
}

// serveTargets registers instances with load balancers until ctx is done. running waits for
// the goroutines that it started. remove removes the metrics.
func (t *term) serveTargets(ctx context.Context, running *sync.WaitGroup) (remove func()) {
	if t.targets == nil {
		return func() {}
	}
	t.shared.registry.MustRegister(t.targets)
	running.Go(func() { t.targets.Run(ctx) })
	return func() { t.shared.registry.Unregister(t.targets) }
}
