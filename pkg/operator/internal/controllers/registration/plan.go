// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"crypto/ed25519"
	"fmt"
	"time"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// observation is the cached state from which plan decides.
type observation struct {
	// ca is nil if caProblem is set.
	ca        *ca
	caProblem *problem
	// key is nil before it is created.
	key        ed25519.PrivateKey
	keyProblem *problem
	// nonce is empty if nonceProblem is set.
	nonce        string
	nonceProblem *problem
	// cert is nil if it does not exist.
	cert        *certificate
	certProblem *problem
	// refused is the result of Controller.refused.
	refused string
	// rejected is the last nonce that a server rejected.
	rejected rejection
	// outdated is since when the CA of the cluster is being replaced and the operator has to
	// renew its certificate because of it, zero if it has not.
	outdated time.Time
}

// rejection is a nonce that a server rejected with a text. It is not sent again before until,
// because the server will reject it until its keys or its clock change.
type rejection struct {
	nonce, text string
	until       time.Time
}

// step is the action of a sync.
type step int

const (
	// The zero value: no action is needed or possible.
	_ step = iota
	// createKey: create and store a key.
	createKey
	// register: exchange the nonce for a certificate.
	register
	// renew: exchange the certificate for a new certificate.
	renew
)

// decision is the result of plan.
type decision struct {
	step step
	// blocked is why the operator has no usable certificate and cannot obtain it; nil
	// otherwise.
	blocked *problem
	// again is when the decision may change although no object has changed; zero for never.
	again time.Time
}

// unshown reports whether the operator trusts another CA than the servers know of, because a server
// has sent the CA or an administrator has changed the ConfigMap. A renewal shows it to them: the
// replacement of the CA waits for that (docs/protocol.md#certificates).
func (o *observation) unshown() bool {
	return o.cert.own && o.cert.shownCA != "" && o.cert.shownCA != o.ca.fingerprints()
}

// plan decides on the next step. A certificate that an administrator provides is never
// replaced.
func plan(o observation, now time.Time) decision {
	if o.caProblem != nil {
		return decision{blocked: o.caProblem}
	}
	blocked := o.unusable(now)
	if blocked == nil {
		early := o.cert.own && !o.outdated.IsZero()
		if o.unshown() || early && !now.Before(o.outdated) || o.cert.own && !now.Before(o.cert.renewal()) {
			return decision{step: renew}
		}
		again := o.cert.next(now)
		if early && (again.IsZero() || o.outdated.Before(again)) {
			again = o.outdated
		}
		return decision{again: again}
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

// unusable returns why shards do not accept the certificate, nil if they accept it.
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

// renewal returns when the certificate is renewed: up to a thirtieth of its lifetime before
// two thirds of it are over, so that many operators do not renew at the same moment.
func (c *certificate) renewal() time.Time {
	jitter := time.Duration(float64(c.lifetime()) / 30 * c.fraction())
	return c.issued.Add(c.lifetime()*2/3 - jitter)
}

// fraction returns a random number between 0 and 1 that is constant for a certificate: it is
// computed from the random serial number.
func (c *certificate) fraction() float64 {
	serial := c.leaf.SerialNumber.Bytes()
	if len(serial) == 0 {
		return 0
	}
	return float64(serial[len(serial)-1]) / 256
}

// overdue and expiring return when a third and a tenth of the lifetime are left.
func (c *certificate) overdue() time.Time  { return c.leaf.NotAfter.Add(-c.lifetime() / 3) }
func (c *certificate) expiring() time.Time { return c.leaf.NotAfter.Add(-c.lifetime() / 10) }

// next returns the first time after now at which the state of the certificate changes.
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
