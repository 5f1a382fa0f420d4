// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/storage"
)

// readAccepted returns the configuration that a leader of the shard put in force last, nil
// if there is none that this server understands.
func (s *Server) readAccepted(ctx context.Context, store storage.Store) (*config.Config, error) {
	source, err := config.ReadAccepted(ctx, store, s.Shard)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil {
		return nil, err
	}
	accepted, err := source.ParseFor(s.Shard, s.Providers)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The accepted configuration is ignored")
		return nil, nil //nolint:nilnil // as if there were none
	}
	return accepted, nil
}

// startConfig returns the configuration to start with: that in the storage or, if it
// cannot be put in force, the accepted one. rejected is why, nil for the first.
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
		// Only mistakes count: the term reports what else is wrong with the groups.
		if err = groups.Check(ctx, accepted, c, store); !isInvalid(err) {
			return c, nil, nil
		}
	}
	klog.FromContext(ctx).Error(err, "The configuration was rejected, starting with the one that was in force last", "key", accepted.Source.Key)
	return accepted, err, nil
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

// configRejected returns why the configuration in the storage is not in force. It returns
// nil if it is, or if another server leads: that one reads it.
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
