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
// document). Then the server gives up the lead: another may fare better.
const termAttempts = 3

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
			return nil
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
	c := t.newestConfig(ctx)
	if t.groups, err = groups.Open(ctx, c, exclusive{t.storage, t.end}); err != nil {
		return err
	}
	t.inForce.Store(c)
	if t.provider, err = t.NewProvider(c, t.bound); err != nil {
		return err
	}
	t.failures, t.events = api.NewErrors(), api.NewInstanceEvents()
	t.cache, err = cache.Open(ctx, filepath.Join(t.CacheDir, t.Shard+".sqlite"))
	return err
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

// newestConfig returns the configuration in the storage, or the one that the
// server began with when that cannot be used.
func (t *term) newestConfig(ctx context.Context) *config.Config {
	next, err := t.readConfig(ctx)
	if err == nil {
		err = t.config.CheckReplacement(next).ToAggregate()
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "The configuration stays as it was when the server started")
		return t.config
	}
	return next
}

// begin waits until all instances are known. Before that, groups would look as
// if they had none.
func (t *term) begin(ctx context.Context) (err error) {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.provider.Synced():
	}
	t.instances, err = instances.Open(ctx, instances.Options{
		Storage:  t.storage,
		Cache:    t.cache,
		Provider: t.provider,
		Shard:    t.Shard,
		Clock:    clock.RealClock{},
		Stale:    t.shard.Predecessor() != t.leaderID(),
	})
	if err != nil {
		return err
	}
	t.board = api.NewBoard(t.groups, t.instances)
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
	shut := t.gate.Open(&api.OperatorService{
		Store:          t.groups,
		Instances:      t.instances,
		Board:          t.board,
		Errors:         t.failures,
		InstanceEvents: t.events,
		Configuration:  configuration,
		Changed:        t.changedOne,
	})
	defer shut()
	t.serving.Store(true)
	defer t.serving.Store(false)
	klog.FromContext(ctx).Info("Serving operators", "shard", t.Shard, "groups", len(t.groups.Keys()))

	var working sync.WaitGroup
	defer working.Wait()
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
		if group, found := t.groups.Get(key); found {
			hashes[key] = cache.Hashes{RuntimeConfig: group.RuntimeConfigHash, InfraConfig: group.InfraConfigHash}
		}
	}
	if err := t.cache.PutGroups(ctx, hashes); err != nil {
		klog.FromContext(ctx).Error(err, "The digests of the groups were not cached")
	}
}

// changedOne is told of each group or instance that came, went or changed.
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
