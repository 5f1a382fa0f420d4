// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/internal/grpcapi"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/storage"
)

// reloadInterval is how long a change of the configuration may remain unnoticed.
const reloadInterval = 2 * time.Second

// configReloader puts each new configuration in the storage in force. An invalid
// one changes nothing.
type configReloader struct {
	storage   storage.Store
	shard     string
	providers provider.Registry
	groups    *groups.Store
	errors    *grpcapi.Errors
	// changed is called after a new configuration was put in force.
	changed func()
	// rejected is called with the mistakes of the configuration in the storage, and with
	// nil when it is in force.
	rejected func(error)

	// mu guards the fields below, and that only one goroutine reloads.
	mu sync.Mutex
	// suspected is the problem that the last periodic reload had, "" for none.
	suspected string
	// reported is the problem that was reported last. It is reported once.
	reported string
	// unaccepted is true while the configuration in force is not stored as accepted.
	unaccepted bool
}

var _ grpcapi.Configuration = (*configReloader)(nil)

// InForce returns the source of the configuration in force.
func (r *configReloader) InForce() config.Source {
	return r.groups.Config().Source
}

// Refresh reloads the configuration. The error is one of the storage, or wraps a
// *config.InvalidError.
func (r *configReloader) Refresh(ctx context.Context) (before, after config.Source, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.InForce()
	if err := r.reload(ctx); err != nil {
		r.report(ctx, err)
		return before, before, err
	}
	return before, r.InForce(), nil
}

// run reloads the configuration at every tick until ctx is done.
func (r *configReloader) run(ctx context.Context, ticks <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			r.poll(ctx)
		}
	}
}

// poll reloads the configuration. It reports a problem when two polls in a row
// have it: the first may have read a file that an editor was writing.
func (r *configReloader) poll(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.reload(ctx)
	if err == nil {
		r.suspected = ""
		return
	}
	if r.suspected == problemKey(err) {
		r.report(ctx, err)
	}
	r.suspected = problemKey(err)
}

// problemKey returns the same text for errors that are reported once. Those of
// the storage are all the same: it may number each failure.
func problemKey(err error) string {
	if isInvalid(err) {
		return err.Error()
	}
	return "not read"
}

// reload puts the configuration in the storage in force if its etag is new. mu
// must be locked.
func (r *configReloader) reload(ctx context.Context) error {
	if r.unaccepted {
		r.accept(ctx)
	}
	source, err := config.Read(ctx, r.storage, r.shard)
	if err != nil {
		return err
	}
	if source.ETag == r.InForce().ETag {
		r.setInForce()
		return nil
	}
	// Also if it was rejected before: the groups may have changed since.
	next, err := source.ParseFor(r.shard, r.providers)
	if err != nil {
		return err
	}
	if err := r.groups.Reconfigure(ctx, next); err != nil {
		return fmt.Errorf("configuration %s:\n%w", source.Key, err)
	}
	r.setInForce()
	klog.FromContext(ctx).Info("Put a new configuration in force", "etag", source.ETag)
	r.changed()
	r.accept(ctx)
	return nil
}

// setInForce records that the configuration in the storage is in force. mu must be locked.
func (r *configReloader) setInForce() {
	r.reported = ""
	r.rejected(nil)
}

// accept stores the configuration in force for servers that start later. The next reload
// repeats it after an error. mu must be locked.
func (r *configReloader) accept(ctx context.Context) {
	err := config.Accept(ctx, r.storage, r.shard, r.InForce())
	if err != nil {
		klog.FromContext(ctx).Error(err, "The accepted configuration was not stored, will retry")
	}
	r.unaccepted = err != nil
}

// report reports a problem, unless it is the one that was reported last. mu must
// be locked.
func (r *configReloader) report(ctx context.Context, err error) {
	if r.reported == problemKey(err) {
		return
	}
	r.reported = problemKey(err)
	klog.FromContext(ctx).Error(err, "The configuration was rejected, the previous one stays in force")
	if isInvalid(err) || errors.Is(err, storage.ErrNotFound) {
		r.rejected(err)
	}
	r.errors.ReportShard(err)
}
