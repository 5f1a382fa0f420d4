// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instance

import (
	"context"
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/server/storage"
)

// AcceptedLosses reads the confirmations of administrators that missing instances of a shard
// are lost (docs/server.md#missing-instances).
type AcceptedLosses struct {
	// Storage is the shard's storage, and Shard its id.
	Storage storage.Store
	Shard   string
}

// IsAccepted reports whether there is a confirmation for a group.
func (a AcceptedLosses) IsAccepted(ctx context.Context, key GroupKey) (bool, error) {
	_, err := a.Storage.Get(ctx, storage.AcceptedLossesKey(a.Shard, key.Tenant, key.Group))
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the accepted losses of group %s: %w", key, err)
	}
	return true, nil
}

// Reset removes the confirmation of a group.
func (a AcceptedLosses) Reset(ctx context.Context, key GroupKey) error {
	if err := a.Storage.Delete(ctx, storage.AcceptedLossesKey(a.Shard, key.Tenant, key.Group)); err != nil {
		return fmt.Errorf("remove the accepted losses of group %s: %w", key, err)
	}
	return nil
}

// AcceptLosses stores that the currently missing instances of a group are lost, so that the
// shard replaces them at once.
func AcceptLosses(ctx context.Context, store storage.Store, shard string, key GroupKey) error {
	_, err := store.Create(ctx, storage.AcceptedLossesKey(shard, key.Tenant, key.Group), []byte("{}\n"))
	if err != nil && !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("accept the losses of group %s: %w", key, err)
	}
	return nil
}
