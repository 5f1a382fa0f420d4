// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package keys

import (
	"context"
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
)

// Import stores an authority that was made elsewhere as that of a cluster that
// has none. One that the cluster has already stays.
func Import(ctx context.Context, store storage.Store, secrets Secrets, authority *pki.Authority) error {
	key, err := authority.KeyPEM()
	if err != nil {
		return fmt.Errorf("importing an authority: %w", err)
	}
	if err := secrets.Create(ctx, authoritySecret, key); err != nil && !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("importing an authority: %w", err)
	}
	if _, err := store.Create(ctx, storage.AuthorityKey, authority.CertificatePEM()); err != nil && !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("importing an authority: %w", err)
	}
	return nil
}
