// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"crypto/ed25519"
	"time"

	"nstance.dev/operator/pkg/server/pki"
)

// Issuer issues client certificates.
type Issuer interface {
	// IssueOperator returns a certificate, PEM, for the key of an operator, and
	// when it expires. The error wraps ErrNotClusterLeader on a server that may
	// not issue any.
	IssueOperator(client pki.Client, key ed25519.PublicKey) (certPEM []byte, expires time.Time, err error)
}
