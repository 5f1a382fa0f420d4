// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/storage"
)

// openGroups opens the groups with the configuration in the storage or, if that
// one is invalid, with the one that was in force last. The first reload reports
// what is invalid.
func (t *term) openGroups(ctx context.Context) error {
	store := exclusiveStore{t.storage, t.stop}
	accepted, err := t.shared.readAccepted(ctx, store)
	if err != nil {
		return err
	}
	next, err := t.newestConfig(ctx)
	if err == nil {
		t.groups, err = groups.Open(ctx, accepted, next, store)
	}
	var rejected error
	if isInvalid(err) || errors.Is(err, storage.ErrNotFound) {
		klog.FromContext(ctx).Error(err, "The configuration was rejected, the previous one stays in force")
		rejected = err
		t.groups, err = groups.Open(ctx, accepted, t.previousConfig(accepted), store)
	}
	if err != nil {
		return err
	}
	t.shared.setRejected(rejected)
	t.shared.inForce.Store(t.groups.Config())
	return nil
}

// previousConfig returns the configuration that was in force last. Another server may have
// put it in force, so it is the accepted one if that needs no restart.
func (t *term) previousConfig(accepted *config.Config) *config.Config {
	if accepted != nil && len(t.shared.config.CheckReplacement(accepted)) == 0 {
		return accepted
	}
	return t.shared.inForce.Load()
}

// newestConfig returns the configuration in the storage. The error wraps a
// *config.InvalidError if it cannot be put in force.
func (t *term) newestConfig(ctx context.Context) (*config.Config, error) {
	next, err := t.shared.readConfig(ctx)
	if err != nil {
		return nil, err
	}
	if problems := t.shared.config.CheckReplacement(next); len(problems) > 0 {
		return nil, &config.InvalidError{Mistakes: problems.ToAggregate()}
	}
	return next, nil
}

// exclusiveStore is a storage for objects that only the leader of the shard
// writes. A conflict means that another writer did: the term's state is outdated
// then, and the term stops.
type exclusiveStore struct {
	storage.Store
	stop context.CancelCauseFunc
}

func (s exclusiveStore) Create(ctx context.Context, key string, data []byte) (string, error) {
	etag, err := s.Store.Create(ctx, key, data)
	s.stopOnConflict(err)
	return etag, err
}

func (s exclusiveStore) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	etag, err := s.Store.Replace(ctx, key, data, etag)
	s.stopOnConflict(err)
	return etag, err
}

func (s exclusiveStore) stopOnConflict(err error) {
	if errors.Is(err, storage.ErrConflict) {
		s.stop(err)
	}
}
