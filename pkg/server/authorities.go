// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/storage"
)

// authoritiesInterval is how often a server looks whether the CA is being replaced, unless
// Server.PollInterval is longer.
const authoritiesInterval = 5 * time.Second

// followAuthorities loads the authorities of the cluster when they change, and reports in the
// storage which ones this server has loaded, until ctx is done. If the storage cannot be read, the
// last authorities stay accepted.
func (p *process) followAuthorities(ctx context.Context) {
	f := &authoritiesFollower{process: p}
	ticker := time.NewTicker(max(authoritiesInterval, p.server.PollInterval))
	defer ticker.Stop()
	for {
		if err := f.follow(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The authorities of the cluster could not be followed, will retry")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

type authoritiesFollower struct {
	process *process
	// etag is the etag of the last object whose authorities are loaded and reported.
	etag string
}

func (f *authoritiesFollower) follow(ctx context.Context) error {
	p := f.process
	object, err := storage.GetChanged(ctx, p.storage, storage.AuthoritiesKey, f.etag)
	if errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrUnchanged) {
		return nil // the CA was never replaced, or not since
	}
	if err != nil {
		return err
	}
	loaded, err := clusterkeys.Load(ctx, p.storage, p.secrets)
	if err != nil {
		return err
	}
	authority := p.shared.keys.Authority
	if authority.Set(loaded.Authority) {
		klog.FromContext(ctx).Info("The accepted authorities have changed", "authorities", authority.Fingerprints())
		p.guard.AuthorityChanged()
	}
	if err := clusterkeys.StoreLoaded(ctx, p.storage, p.server.Shard, p.server.ID, authority.Fingerprints()); err != nil {
		return err
	}
	f.etag = object.ETag
	return nil
}
