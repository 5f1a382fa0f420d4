// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"crypto/x509"
	"time"
)

// settlePeriod is how long the configuration must have had a new authority before
// certificates are signed by it: every API server has read it by then.
const settlePeriod = 10 * time.Minute

// decision names the parts to replace.
type decision struct {
	// authority means to add a new authority before the trusted ones.
	authority bool
	// serving means to issue a new serving certificate, signed by the newest
	// authority.
	serving bool
	// next is when to plan again.
	next time.Time
}

// plan decides what to replace for a webhook at hosts. trustedSince is since when
// the configuration has exactly the present authorities, or zero if it has others.
//
// A valid authority or certificate is replaced after two thirds of its lifetime. A
// new authority is trusted together with the old one for a while before it signs,
// and the old one stays trusted until it expires. So an API server with a slightly
// older configuration can verify the certificate of every replica at any time.
func plan(now time.Time, have material, hosts []string, trustedSince time.Time) decision {
	var d decision
	newest := have.newest()
	d.authority = newest == nil || have.key == nil || !now.Before(dueAt(newest))
	if !have.serves(now, hosts) {
		d.serving = true
	}
	if d.authority || d.serving {
		// The next time depends on the new parts.
		d.next = now
		return d
	}

	d.next = earliest(dueAt(newest), have.authorities[len(have.authorities)-1].NotAfter)
	settled := trustedSince.Add(settlePeriod)
	due := dueAt(have.serving)
	if have.serving.CheckSignatureFrom(newest) != nil {
		due = now
	}
	switch {
	case now.Before(due):
		d.next = earliest(d.next, due)
	case trustedSince.IsZero():
		// The change of the configuration enqueues the next sync.
	case now.Before(settled):
		d.next = earliest(d.next, settled)
	default:
		d.serving = true
		d.next = now
	}
	return d
}

// dueAt returns when to replace a certificate: early enough for an administrator to
// notice when that fails.
func dueAt(certificate *x509.Certificate) time.Time {
	lifetime := certificate.NotAfter.Sub(certificate.NotBefore)
	return certificate.NotBefore.Add(lifetime / 3 * 2)
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
