// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

var (
	// ErrAttestation means that an agent has not proven that it runs on the machine of its
	// instance.
	ErrAttestation = errors.New("the identity of the machine is not proven")
	// errNoProviderID means that a signed identity cannot be compared yet.
	errNoProviderID = errors.New("the provider has not reported the id of the machine yet")
)

// maxIdentity is the maximum length of a signed identity, in bytes. The clouds sign documents of 2
// KiB.
const maxIdentity = 16 << 10

// attest returns an error if the configuration requires the signed identity of the machine, and the
// request does not have the identity of the machine of this instance. If that is not known, the
// agent tries again, and the error does not wrap ErrAttestation.
func (r *Registrar) attest(ctx context.Context, i *instance.Instance, request Request) error {
	attestation := provider.RequiredAttestation(r.Groups.Config().Shard.Infra.Options)
	switch {
	case attestation == nil:
		return nil
	case i.ProviderID == "":
		return errNoProviderID
	case len(request.Identity) == 0:
		return fmt.Errorf("%w: the agent has not sent the identity that the cloud signs, see its log", ErrAttestation)
	case len(request.Identity) > maxIdentity:
		return fmt.Errorf("%w: machine_identity has %d bytes, at most %d are allowed", ErrAttestation, len(request.Identity), maxIdentity)
	}
	err := attestation.VerifyIdentity(ctx, i.ProviderID, request.Identity, keys.Audience(request.Token, request.PublicKeyPEM))
	if err != nil && !errors.Is(err, provider.ErrNotVerified) {
		return fmt.Errorf("%w: %w", ErrAttestation, err)
	}
	return err
}
