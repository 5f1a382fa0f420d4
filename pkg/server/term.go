// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/server/api"
	"nstance.dev/operator/pkg/server/cache"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instances"
	"nstance.dev/operator/pkg/server/nonce"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/reconciler"
	"nstance.dev/operator/pkg/server/storage"
)

// termAttempts is how often a term is begun that comes to nothing (server
// document). Then the server ends, and releases the lock: another may fare better,
// and whoever runs the server starts it again.
const termAttempts = 3

// syncTimeouts is for how many request timeouts a term waits until all instances
// are known: a large list takes more than one request.
const syncTimeouts = 4

// term is what lives while a server leads its shard. It is made anew from the
// storage and the provider each time, so that nothing of a former term, which
// another server may have followed, is left.
type term struct {
	*process
	// storage refuses writes when the server does not lead any more.
	storage storage.Store
	// end ends the term early.
	end        context.CancelCauseFunc
	groups     *groups.Store
	cache      *cache.DB
	provider   instance.Provider
	instances  *instances.Store
	board      *api.Board
	failures   *api.Errors
	events     *api.InstanceEvents
	reconciler *reconciler.Reconciler
	// begun is closed when all of the above is there.
	begun chan struct{}
}

// lead works until ctx, which ends with the lead. A term that ends for another
// reason, such as somebody else's writing what is ours, is followed by the next.
func (p *process) lead(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	for attempt := 1; ; attempt++ {
		served, err := p.serveTerm(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if served {
			attempt = 1
		}
		if _, invalid := errors.AsType[*config.InvalidError](err); invalid || attempt == termAttempts {
			return err
		}
		logger.Error(err, "The term ended early, will begin another", "attempt", attempt)
		if !sleep(ctx, time.Duration(attempt)*time.Second) {
			return nil
		}
	}
}

// serveTerm tells whether operators were served.
func (p *process) serveTerm(ctx context.Context) (served bool, err error) {
	termCtx, end := context.WithCancelCause(ctx)
	defer end(nil)
	t := &term{process: p, storage: p.shard.Fence(p.storage), end: end, begun: make(chan struct{})}
	if err := t.open(termCtx); err != nil {
		return false, err
	}
	g, working := errgroup.WithContext(termCtx)
	g.Go(func() error { return t.provider.Run(working, t.changedOne, t.failures.ReportInstance) })
	g.Go(func() error {
		if err := t.begin(working); err != nil {
			return err
		}
		served = true
		return t.serve(working)
	})
	err = g.Wait()
	return served, errors.Join(err, context.Cause(termCtx), t.cache.Close())
}

// open reads what is wanted.
func (t *term) open(ctx context.Context) (err error) {
	if t.cache, err = cache.Open(ctx, filepath.Join(t.CacheDir, t.Shard+".sqlite")); err != nil {
		return err
	}
	if err := t.openGroups(ctx); err != nil {
		return errors.Join(err, t.cache.Close())
	}
	if t.provider, err = t.NewProvider(t.groups.Config(), t.bound); err != nil {
		return errors.Join(err, t.cache.Close())
	}
	t.failures, t.events = api.NewErrors(), api.NewInstanceEvents()
	return nil
}

// openGroups reads the groups with the configuration in the storage or, when that
// one cannot be used, with the one that was in force last. Whoever looks at the
// configuration later will tell what is wrong.
func (t *term) openGroups(ctx context.Context) error {
	store := exclusive{t.storage, t.end}
	next, err := t.newestConfig(ctx)
	if err == nil {
		t.groups, err = groups.Open(ctx, next, store)
	}
	if _, invalid := errors.AsType[*config.InvalidError](err); invalid {
		klog.FromContext(ctx).Error(err, "The configuration stays as it was")
		t.groups, err = groups.Open(ctx, t.inForce.Load(), store)
	}
	if err != nil {
		return err
	}
	t.inForce.Store(t.groups.Config())
	return nil
}

// newestConfig returns the configuration in the storage. The error wraps a
// *config.InvalidError when it cannot be used.
func (t *term) newestConfig(ctx context.Context) (*config.Config, error) {
	next, err := t.readConfig(ctx)
	if err != nil {
		return nil, err
	}
	if problems := t.config.CheckReplacement(next); len(problems) > 0 {
		return nil, &config.InvalidError{Mistakes: problems.ToAggregate()}
	}
	return next, nil
}

// exclusive is a storage for objects that only the leader of the shard writes. A
// conflict says that somebody else did: what is known is outdated then, and the
// term ends.
type exclusive struct {
	storage.Store
	end context.CancelCauseFunc
}

func (e exclusive) Create(ctx context.Context, key string, data []byte) (string, error) {
	etag, err := e.Store.Create(ctx, key, data)
	e.look(err)
	return etag, err
}

func (e exclusive) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	etag, err := e.Store.Replace(ctx, key, data, etag)
	e.look(err)
	return etag, err
}

func (e exclusive) look(err error) {
	if errors.Is(err, storage.ErrConflict) {
		e.end(err)
	}
}

// begin waits until all instances are known. Before that, groups would look as
// if they had none. It does not wait for ever: another server may reach the
// provider.
func (t *term) begin(ctx context.Context) (err error) {
	timeout := time.NewTimer(syncTimeouts * t.groups.Config().Shard.RequestTimeout)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timeout.C:
		return errors.New("the provider did not tell of its instances in time")
	case <-t.provider.Synced():
	}
	t.instances, err = instances.Open(ctx, instances.Options{
		Storage:  t.storage,
		Cache:    t.cache,
		Provider: t.provider,
		Shard:    t.Shard,
		Clock:    clock.RealClock{},
		Stale:    t.stale(ctx),
	})
	if err != nil {
		return err
	}
	if err := t.cache.SetReign(ctx, t.shard.Reign()); err != nil {
		klog.FromContext(ctx).Error(err, "The cache will not be believed after the next start")
	}
	t.board = api.NewBoard(t.groups, t.instances, t.provider)
	t.reconciler = reconciler.New(reconciler.Options{
		Groups:    t.groups,
		Instances: t.instances,
		Provider:  t.provider,
		Specs: provision.New(provision.Options{
			Config:       t.groups.Config,
			Addresses:    t.advertise,
			AuthorityPEM: t.keys.Authority.CertificatePEM(),
			Nonces:       nonce.NewSigner(t.keys.Nonce),
		}),
		Events:  t.events,
		Changed: func(key instance.GroupKey) { t.board.Refresh(key) },
		Failed:  t.failures.ReportInstance,
		Bound:   t.bound,
		Metrics: t.reconciling,
	})
	t.recordHashes(ctx)
	close(t.begun)
	return nil
}

// stale tells whether somebody else may have led since the cache was written.
func (t *term) stale(ctx context.Context) bool {
	reign, err := t.cache.Reign(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The cache is not believed")
		return true
	}
	return reign != t.shard.Reign()
}

// bound returns the context of one call that only the leader may make.
func (t *term) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelLease := t.shard.Context(ctx)
	ctx, cancelTimeout := context.WithTimeout(ctx, t.groups.Config().Shard.RequestTimeout)
	return ctx, func() {
		cancelTimeout()
		cancelLease()
	}
}

// serve lets operators in and works on groups until ctx ends.
func (t *term) serve(ctx context.Context) error {
	configuration := &configuration{
		storage: t.storage,
		server:  t.Server,
		store:   t.groups,
		errors:  t.failures,
		changed: func() {
			t.inForce.Store(t.groups.Config())
			t.recordHashes(ctx)
			t.changed(t.keysOfAll()...)
		},
	}
	// Groups that have instances but are no more come from the instances.
	t.changed(t.keysOfAll()...)
	collector := &reconciler.Collector{Groups: t.groups, Instances: t.instances}
	t.registry.MustRegister(collector)
	defer t.registry.Unregister(collector)
	// The gate shuts first: nobody must be answered while work that hangs is
	// waited for.
	var working sync.WaitGroup
	defer working.Wait()
	shut := t.gate.Open(&api.OperatorService{
		Store:          t.groups,
		Instances:      t.instances,
		Board:          t.board,
		Errors:         t.failures,
		InstanceEvents: t.events,
		Configuration:  configuration,
		Changed:        func(key instance.GroupKey) { t.changedByOperator(ctx, key) },
	})
	defer shut()
	t.serving.Store(true)
	defer t.serving.Store(false)
	klog.FromContext(ctx).Info("Serving operators", "shard", t.Shard, "groups", len(t.groups.Keys()))

	working.Go(func() { t.reconciler.Run(ctx) })
	ticks := t.ReadConfig
	if ticks == nil {
		ticker := time.NewTicker(readAgainAfter)
		defer ticker.Stop()
		ticks = ticker.C
	}
	configuration.follow(ctx, ticks)
	return nil
}

// keysOfAll returns the groups that are wanted and those that have instances.
func (t *term) keysOfAll() []instance.GroupKey {
	keys := slices.Concat(t.groups.Keys(), t.instances.Keys())
	slices.SortFunc(keys, instance.GroupKey.Compare)
	return slices.Compact(keys)
}

// recordHashes puts the digests of all groups into the cache (server document).
func (t *term) recordHashes(ctx context.Context) {
	hashes := map[instance.GroupKey]cache.Hashes{}
	for _, key := range t.groups.Keys() {
		if of := t.hashes(key); of != nil {
			hashes[key] = *of
		}
	}
	if err := t.cache.PutGroups(ctx, hashes); err != nil {
		klog.FromContext(ctx).Error(err, "The digests of the groups were not cached")
	}
}

// hashes returns the digests of a group, nil when there is no such group.
func (t *term) hashes(key instance.GroupKey) *cache.Hashes {
	group, found := t.groups.Get(key)
	if !found {
		return nil
	}
	return &cache.Hashes{RuntimeConfig: group.RuntimeConfigHash, InfraConfig: group.InfraConfigHash}
}

// changedByOperator is told of each group that an operator has changed, or one of
// whose instances.
func (t *term) changedByOperator(ctx context.Context, key instance.GroupKey) {
	if err := t.cache.PutGroup(ctx, key, t.hashes(key)); err != nil {
		klog.FromContext(ctx).Error(err, "The digests of a group were not cached")
	}
	t.changed(key)
}

// changedOne is told of each instance that came, went or changed.
func (t *term) changedOne(key instance.GroupKey) { t.changed(key) }

// changed brings what is shown of groups up to date and has them worked on.
// Before the term has begun there is nothing to do: everything is looked at then.
func (t *term) changed(keys ...instance.GroupKey) {
	select {
	case <-t.begun:
	default:
		return
	}
	t.board.Refresh(keys...)
	for _, key := range keys {
		t.reconciler.Enqueue(key)
	}
}
