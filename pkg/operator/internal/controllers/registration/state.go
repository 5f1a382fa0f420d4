// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// Reasons of the condition IdentityReady. docs/operations.md describes what to do.
const (
	reasonCAMissing    = "CAMissing"
	reasonCAInvalid    = "CAInvalid"
	reasonNonceMissing = "NonceMissing"
	reasonNonceInvalid = "NonceInvalid"
	// reasonNonceRejected: a server does not accept the nonce; the message is its text.
	reasonNonceRejected = "NonceRejected"
	reasonKeyInvalid    = "KeyInvalid"
	// reasonRegistrationFailed: no server could be reached that issues certificates.
	reasonRegistrationFailed = "RegistrationFailed"
	// reasonCertificateInvalid: the Secret has no usable certificate.
	reasonCertificateInvalid = "CertificateInvalid"
	reasonCertificateExpired = "CertificateExpired"
	// reasonCertificateRejected: the shards do not accept the certificate, for example
	// because it was revoked.
	reasonCertificateRejected = "CertificateRejected"
	// reasonRenewalOverdue: less than a third of the certificate's lifetime is left.
	reasonRenewalOverdue = "RenewalOverdue"
)

// State returns status, reason and message of the condition IdentityReady as of the last
// sync; no status before the first.
func (c *Controller) State() metav1.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// AddHandler registers handler, which is called when State changed. It must be called
// before Run.
func (c *Controller) AddHandler(handler func()) {
	c.handlers = append(c.handlers, handler)
}

func (c *Controller) setState(state metav1.Condition) {
	c.mu.Lock()
	changed := c.state != state
	c.state = state
	c.mu.Unlock()
	if changed {
		for _, handler := range c.handlers {
			handler()
		}
	}
}

// newState returns the state after a sync that made one step with an error, or none.
func newState(o observation, decided decision, err error, now time.Time) metav1.Condition {
	ready := metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReady}
	notReady := func(reason, message string) metav1.Condition {
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
	}
	switch {
	case decided.blocked != nil:
		return notReady(decided.blocked.reason, decided.blocked.message)
	case decided.step == register && nonceRejected(err):
		return notReady(reasonNonceRejected, shard.Message(err))
	case (decided.step == createKey || decided.step == register) && err != nil:
		return notReady(reasonRegistrationFailed, err.Error())
	case decided.step == createKey, decided.step == register:
		return notReady(v1beta1.ReasonNotRegistered, "the operator is registering")
	case now.Before(o.cert.overdue()) || decided.step == renew && err == nil:
		return ready
	}
	message := fmt.Sprintf("the certificate expires at %s", format(o.cert.leaf.NotAfter))
	switch {
	case err != nil:
		message += " and could not be renewed: " + err.Error()
	case !o.cert.own:
		message += "; the administrator who provided it renews it"
	}
	if now.Before(o.cert.expiring()) {
		return metav1.Condition{Status: metav1.ConditionTrue, Reason: reasonRenewalOverdue, Message: message}
	}
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonCertificateExpiring, Message: message}
}
