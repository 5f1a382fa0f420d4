// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"time"

	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/base/keys"
)

// renew exchanges the certificate for the next one, for a new key. Key and certificate are stored
// together. If they are lost, the present certificate is renewed again: the servers accept it for
// a while after the renewal (docs/protocol.md#certificates).
func (c *Controller) renew(ctx context.Context, o observation) error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("generate the next key of the client certificate: %w", err)
	}
	request, err := keys.NewRequest(private)
	if err != nil {
		return err
	}
	keyPEM, err := keys.EncodePrivate(private)
	if err != nil {
		return fmt.Errorf("encode the next key of the client certificate: %w", err)
	}
	request.TrustedAuthorities = authorities.Fingerprints([]byte(o.ca.pem))
	var failures shardErrors
	for _, id := range slices.Sorted(maps.Keys(c.options.Endpoints.Endpoints())) {
		response, err := c.options.Renewer.RenewCertificate(ctx, id, request)
		if err == nil {
			err = c.storeCertificate(ctx, issued{Issued: response, keyPEM: keyPEM, nonce: o.cert.nonce, ca: o.ca})
			if err == nil {
				c.outdated = c.nextOutdated(response)
			}
			return err
		}
		failures.add(id, err)
	}
	return fmt.Errorf("renew the client certificate: %w", failures.join())
}

const (
	// outdatedRetry is the delay before a certificate is renewed again because of the CA.
	outdatedRetry = time.Minute
	// unextendedRetry is the same if the server does not send its authorities.
	unextendedRetry = time.Hour
)

// nextOutdated returns when the certificate has to be renewed again because of the CA, zero if it
// has not: the server that issued it may not have loaded the authorities yet that another has shown.
func (c *Controller) nextOutdated(response keys.Issued) time.Time {
	switch now := c.clock.Now(); {
	case !c.isOutdated():
		return time.Time{}
	case len(response.AuthoritiesPEM) > 0:
		return now.Add(outdatedRetry)
	default:
		return now.Add(unextendedRetry)
	}
}

func (c *Controller) isOutdated() bool { return c.options.Outdated != nil && c.options.Outdated() }
