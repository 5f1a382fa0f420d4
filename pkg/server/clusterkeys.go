// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
)

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
	p.registrar = &registration.Registrar{
		ClusterID: p.shared.config.ClusterID,
		Keys:      keys,
		Store:     p.clusterElector.Fence(p.storage),
		Leading:   p.clusterElector.Leading,
		Config:    p.shared.inForce.Load,
	}
	p.shared.gate.Issuer = p.registrar
}
