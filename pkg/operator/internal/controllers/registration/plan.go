// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"crypto/ed25519"
	"crypto/x509"
	"fmt"
	"time"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// observation is what a sync decides from.
type observation struct {
	authorities *x509.CertPool
	caProblem   *problem
	// key is nil until it was created.
	key        ed25519.PrivateKey
	keyProblem *problem
	// nonce is empty if there is a nonceProblem.
	nonce        string
	nonceProblem *problem
	// cert is nil if there is none.
	cert        *certificate
	certProblem *problem
	// refused is the text of a shard that rejects the certificate, "" if none does, or if
	// another shard accepts it.
	refused string
	// rejected is the nonce that a server rejected last.
	rejected rejection
}

// rejection is a nonce that a server rejected with a text. It is not sent again before
// a time: a server that rejects it once does so until its keys or its clock change.
type rejection struct {
	nonce, text string
	until       time.Time
}

// step is the one change that a sync makes.
type step int

const (
	// The zero step: there is nothing to do now, or nothing that the operator can do.
	_ step = iota
	// createKey: a key is created and stored.
	createKey
	// register: the nonce is exchanged for a certificate.
	register
	// renew: the certificate is exchanged for the next one.
	renew
)

// decision is the result of plan.
type decision struct {
	step step
	// blocked is why the operator has no usable certificate and cannot get one; nil if it
	// has one, or can.
	blocked *problem
	// again is when the decision may be another one although no object changed; zero for
	// never.
	again time.Time
}

// plan returns the next step. A certificate that an administrator provides is never
// replaced.
func plan(o observation, now time.Time) decision {
	if o.caProblem != nil {
		return decision{blocked: o.caProblem}
	}
	blocked := o.unusable(now)
	if blocked == nil {
		if o.cert.own && !now.Before(o.cert.renewal()) {
			return decision{step: renew}
		}
		return decision{again: o.cert.next(now)}
	}
	switch {
	case o.cert != nil && !o.cert.own:
		return decision{blocked: blocked}
	case o.nonceProblem != nil:
		if o.cert != nil {
			return decision{blocked: &problem{blocked.reason, blocked.message + "; " + o.nonceProblem.message}}
		}
		return decision{blocked: o.nonceProblem}
	case o.cert != nil && o.cert.nonce == digest(o.nonce):
		return decision{blocked: &problem{blocked.reason, blocked.message + "; the nonce was used for it, the operator needs a new one"}}
	case o.rejected.nonce == o.nonce && now.Before(o.rejected.until):
		return decision{blocked: &problem{reasonNonceRejected, o.rejected.text}, again: o.rejected.until}
	case o.keyProblem != nil:
		return decision{blocked: o.keyProblem}
	case o.key == nil:
		return decision{step: createKey}
	default:
		return decision{step: register}
	}
}

// unusable returns why there is no certificate that shards accept, nil if there is one.
func (o observation) unusable(now time.Time) *problem {
	switch {
	case o.cert == nil:
		return &problem{v1beta1.ReasonNotRegistered, "the operator has no certificate yet"}
	case o.certProblem != nil:
		return o.certProblem
	case !now.Before(o.cert.leaf.NotAfter):
		return &problem{reasonCertificateExpired, fmt.Sprintf("the certificate expired at %s", format(o.cert.leaf.NotAfter))}
	case o.refused != "":
		return &problem{reasonCertificateRejected, o.refused}
	}
	return nil
}

func (c *certificate) lifetime() time.Duration { return c.leaf.NotAfter.Sub(c.issued) }

// renewal is when the certificate is renewed: up to a thirtieth of its lifetime before
// two thirds of it are over, so that many operators do not renew at one moment.
func (c *certificate) renewal() time.Time {
	jitter := time.Duration(float64(c.lifetime()) / 30 * c.fraction())
	return c.issued.Add(c.lifetime()*2/3 - jitter)
}

// fraction is between 0 and 1, random, and always the same for one certificate: the
// serial number is random.
func (c *certificate) fraction() float64 {
	serial := c.leaf.SerialNumber.Bytes()
	if len(serial) == 0 {
		return 0
	}
	return float64(serial[len(serial)-1]) / 256
}

// overdue and expiring are when a third and a tenth of the lifetime are left.
func (c *certificate) overdue() time.Time  { return c.leaf.NotAfter.Add(-c.lifetime() / 3) }
func (c *certificate) expiring() time.Time { return c.leaf.NotAfter.Add(-c.lifetime() / 10) }

// next is the first time after now at which something about the certificate changes.
func (c *certificate) next(now time.Time) time.Time {
	times := []time.Time{c.overdue(), c.expiring(), c.leaf.NotAfter}
	if c.own {
		times = append([]time.Time{c.renewal()}, times...)
	}
	for _, at := range times {
		if at.After(now) {
			return at
		}
	}
	return time.Time{}
}

func format(t time.Time) string { return t.UTC().Format(time.RFC3339) }
