// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Errors of Check. The client needs another certificate: the one that it renewed, or
// one for a new nonce.
var (
	// ErrExpired means that the certificate has expired.
	ErrExpired = errors.New("the client certificate has expired")
	// ErrRevoked means that an administrator revoked the certificate.
	ErrRevoked = errors.New("the client certificate was revoked")
	// ErrReplaced means that another certificate was issued since, and that the time
	// in which both are accepted is over.
	ErrReplaced = errors.New("the client certificate was replaced")
)

// Check returns an error if the operator may not use a certificate, which chains to
// the cluster's authority, at a time. Without a registration, for which r is nil or
// has no serial number, every such certificate is accepted unless it was revoked: an
// administrator or a server of an older version may have issued it.
func (r *Record) Check(certificate *x509.Certificate, now time.Time) error {
	number := serial(certificate)
	if now.After(certificate.NotAfter) {
		return rejected(ErrExpired, number, "at "+certificate.NotAfter.UTC().Format(time.RFC3339))
	}
	switch {
	case r == nil:
		return nil
	case slices.Contains(r.RevokedSerials, number):
		return rejected(ErrRevoked, number, "")
	case r.CertSerial == "":
		if certificate.NotBefore.Before(r.RevokedBefore) {
			return rejected(ErrRevoked, number, "")
		}
		return nil
	case r.CertSerial == number:
		return nil
	case r.PreviousSerial == number && now.Before(r.PreviousUntil):
		return nil
	}
	return rejected(ErrReplaced, number, "by "+r.CertSerial)
}

func rejected(reason error, serial, detail string) error {
	if detail != "" {
		detail = " " + detail
	}
	return fmt.Errorf("%w%s (serial number %s): register with a new nonce unless a newer certificate is at hand", reason, detail, serial)
}

// issued returns the record after a certificate was issued. next describes it, and r,
// which may be nil, is the record before. The certificate replaces the one with the
// serial number previous, if that is not empty, which expires at expires.
func (r *Record) issued(next Record, previous string, expires time.Time) Record {
	now := time.Now().UTC()
	if r != nil {
		next.RevokedSerials, next.RevokedAt, next.RevokedBefore = r.RevokedSerials, r.RevokedAt, r.RevokedBefore
		if next.RegisteredAt.IsZero() {
			next.RegisteredAt = r.RegisteredAt
		}
	}
	if next.RegisteredAt.IsZero() {
		next.RegisteredAt = now
	}
	if previous == "" || slices.Contains(next.RevokedSerials, previous) {
		return next
	}
	next.PreviousSerial, next.PreviousUntil = previous, now.Add(Grace)
	if expires.Before(next.PreviousUntil) {
		next.PreviousUntil = expires.UTC()
	}
	return next
}
