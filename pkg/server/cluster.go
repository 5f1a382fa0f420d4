// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/keys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
)

// keysAgainAfter is how long a server waits that needs the cluster's keys and
// does not find them.
const keysAgainAfter = time.Second

// leadCluster makes the keys of the cluster unless they are there, and stays
// the leader: registrations ask for it.
func (p *process) leadCluster(ctx context.Context) error {
	store := p.cluster.Fence(p.storage)
	secrets, err := openSecrets(p.config.Secrets, store)
	if err != nil {
		return err
	}
	for {
		_, err := keys.Ensure(ctx, store, secrets, p.config.ClusterID)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		klog.FromContext(ctx).Error(err, "The keys of the cluster were not made, will retry")
		if !sleep(ctx, keysAgainAfter) {
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

// loadKeys waits until the leader of the cluster has made the keys.
func (p *process) loadKeys(ctx context.Context) error {
	failures := 0
	for waiting := false; ; waiting = true {
		loaded, err := keys.Load(ctx, p.storage, p.secrets)
		if err == nil {
			p.keys = loaded
			p.registrar = &registration.Registrar{
				ClusterID: p.config.ClusterID,
				Keys:      loaded,
				Store:     p.cluster.Fence(p.storage),
				Leading:   p.cluster.Leading,
				Config:    p.inForce.Load,
			}
			p.gate.Issuer = p.registrar
			return nil
		}
		if !errors.Is(err, storage.ErrNotFound) {
			if failures++; failures == readAttempts {
				return fmt.Errorf("reading the keys of the cluster: %w", err)
			}
			klog.FromContext(ctx).Error(err, "The keys of the cluster were not read, will retry", "attempt", failures)
		} else if !waiting {
			klog.FromContext(ctx).Info("Waiting for the leader of the cluster to make the keys")
		}
		if !sleep(ctx, keysAgainAfter) {
			return ctx.Err()
		}
	}
}

// sleep returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
