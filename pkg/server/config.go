// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/internal/grpcapi"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/storage"
)

// readAccepted returns the configuration that a leader of the shard put in force last, nil if
// there is no configuration that this server understands.
func (s *Server) readAccepted(ctx context.Context, store storage.Store) (*config.Config, error) {
	source, err := config.ReadAccepted(ctx, store, s.Shard)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil //nolint:nilnil // no configuration was accepted
	}
	if err != nil {
		return nil, err
	}
	accepted, err := source.ParseFor(s.Shard, s.Providers)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The accepted configuration is ignored")
		return nil, nil //nolint:nilnil // as if no configuration was accepted
	}
	return accepted, nil
}

// startConfig returns the configuration to start with: the configuration in the storage or,
// if it cannot be put in force, the accepted configuration. In the second case, rejected is
// the reason.
func (s *Server) startConfig(ctx context.Context, store storage.Store) (c *config.Config, rejected, err error) {
	c, err = s.readConfig(ctx)
	if err != nil && !isInvalid(err) && !errors.Is(err, storage.ErrNotFound) {
		return nil, nil, err
	}
	accepted, acceptedErr := s.readAccepted(ctx, store)
	switch {
	case err == nil && (acceptedErr != nil || accepted == nil):
		return c, nil, nil //nolint:nilerr // a term reads the accepted one again
	case acceptedErr != nil || accepted == nil:
		return nil, nil, errors.Join(err, acceptedErr)
	case err == nil:
		// Only mistakes count: the term reports other problems of the groups.
		if err = groups.Check(ctx, accepted, c, store); !isInvalid(err) {
			return c, nil, nil
		}
	}
	klog.FromContext(ctx).Error(err, "The configuration was rejected, starting with the one that was in force last", "key", accepted.Source.Key)
	return accepted, err, nil
}

// logWarnings logs what the configuration should not have.
func logWarnings(logger klog.Logger, c *config.Config) {
	for _, warning := range c.Warnings() {
		logger.Info("The configuration is valid, but has a warning", "warning", warning)
	}
}

func isInvalid(err error) bool {
	_, invalid := errors.AsType[*config.InvalidError](err)
	return invalid
}

// setRejected records why the configuration in the storage is not in force, nil if it is.
func (sh *shared) setRejected(err error) {
	if err == nil {
		sh.rejected.Store(nil)
		return
	}
	sh.rejected.Store(&err)
}

// configRejected returns why the configuration in the storage is not in force. It returns nil
// if it is in force, or if another server leads, which reads the configuration itself.
func (sh *shared) configRejected() error {
	if err := sh.rejected.Load(); err != nil && sh.elector.Leading() {
		return *err
	}
	return nil
}

// newRejectedMetric returns a metric that is 1 while the configuration in the storage is
// rejected.
func (sh *shared) newRejectedMetric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nstance_server_config_rejected",
		Help: "1 while this server leads and the configuration in the storage is not valid, so that an earlier one is in force.",
	}, func() float64 {
		if sh.configRejected() != nil {
			return 1
		}
		return 0
	})
}

// reloadInterval is how long a change of the configuration may remain unnoticed, unless
// Server.PollInterval is longer.
const reloadInterval = 2 * time.Second

// configReloader puts each new configuration in the storage in force. An invalid
// configuration changes nothing.
type configReloader struct {
	storage storage.Store
	// minWriteInterval is the field of Server.
	minWriteInterval time.Duration
	shard            string
	providers        provider.Registry
	groups           *groups.Store
	errors           *grpcapi.Errors
	// changed is called after a new configuration was put in force.
	changed func()
	// rejected is called with the mistakes of the configuration in the storage, and with
	// nil when it is in force.
	rejected func(error)

	// mu guards the fields below. reload holds it, so that only one goroutine reloads.
	mu sync.Mutex
	// suspected is the problem of the last periodic reload, "" if it had no problem.
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

// Refresh reloads the configuration. The error comes from the storage, or wraps a
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

// poll reloads the configuration. It reports a problem if two polls in a row have it: the
// first may have read a file that an editor was writing.
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

// problemKey returns the same text for errors that are reported once. All errors of the
// storage have one key: it may number each failure.
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
	source, changed, err := config.ReadChanged(ctx, r.storage, r.shard, r.InForce().ETag)
	if err != nil {
		return err
	}
	if !changed {
		r.setInForce()
		return nil
	}
	// A configuration that was rejected before is parsed again: the groups may have changed
	// since.
	next, err := source.ParseFor(r.shard, r.providers)
	if err != nil {
		return err
	}
	if err := source.Reject(next.ValidateElections(r.minWriteInterval)); err != nil {
		return err
	}
	if err := r.groups.Reconfigure(ctx, next); err != nil {
		return fmt.Errorf("configuration %s:\n%w", source.Key, err)
	}
	r.setInForce()
	klog.FromContext(ctx).Info("Put a new configuration in force", "etag", source.ETag)
	logWarnings(klog.FromContext(ctx), next)
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

// report reports a problem, unless the same problem was reported last. mu must be locked.
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
