// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clusterkeys

import (
	"context"
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
)

// Import stores an authority that was created elsewhere as that of the cluster. An
// authority that the cluster already has is kept.
func Import(ctx context.Context, store storage.Store, secrets Secrets, authority *pki.Authority) error {
	key, err := authority.KeyPEM()
	if err != nil {
		return fmt.Errorf("import an authority: %w", err)
	}
	if err := secrets.Create(ctx, authoritySecret, key); err != nil && !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("import an authority: %w", err)
	}
	if _, err := store.Create(ctx, storage.AuthorityKey, authority.CertificatePEM()); err != nil && !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("import an authority: %w", err)
	}
	return nil
}
