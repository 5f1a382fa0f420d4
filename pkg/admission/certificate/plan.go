// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package certificate

import (
	"crypto/x509"
	"time"
)

// settlePeriod is how long the configuration must have named a new authority
// before anything is signed by it alone: every API server has seen it by then.
const settlePeriod = 10 * time.Minute

// decision says what is to be made anew.
type decision struct {
	// authority asks for a new one in front of those that are trusted.
	authority bool
	// serving asks for a new serving certificate, signed by the newest authority.
	serving bool
	// next is when to decide again.
	next time.Time
}

// plan decides what is to be made anew for a webhook at hosts; trustedSince is
// since when the configuration names exactly the authorities that there are, zero
// when it does not.
//
// An authority and a certificate that still serve are replaced when two thirds of
// their life are over. A new authority is trusted, beside the old one, for a while
// before it signs; the old one stays trusted as long as it lives. So at no moment
// does an API server that is a little behind meet a certificate it cannot verify,
// whichever replica it asks.
func plan(now time.Time, have material, hosts []string, trustedSince time.Time) decision {
	var d decision
	newest := have.newest()
	d.authority = newest == nil || have.key == nil || !now.Before(dueAt(newest))
	if !have.serves(now, hosts) {
		d.serving = true
	}
	if d.authority || d.serving {
		// What comes next depends on what is made now.
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
		// The configuration will change, and that wakes the controller.
	case now.Before(settled):
		d.next = earliest(d.next, settled)
	default:
		d.serving = true
		d.next = now
	}
	return d
}

// dueAt is when a certificate is to be replaced: late enough to be of use, early
// enough for somebody to notice when that fails.
func dueAt(certificate *x509.Certificate) time.Time {
	life := certificate.NotAfter.Sub(certificate.NotBefore)
	return certificate.NotBefore.Add(life / 3 * 2)
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
