// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/internal/retry"
	"nstance.dev/operator/pkg/base/keys"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	renewalTimeout = 10 * time.Second
	// maxRenewalDelay is the longest time between two attempts.
	maxRenewalDelay = time.Minute
	// unimplementedRenewalDelay is the delay after Unimplemented: another version of the
	// server may have replaced it.
	unimplementedRenewalDelay = time.Hour
	// replaceTimeout bounds opening a connection with the new certificate.
	replaceTimeout = time.Minute
	// pollInterval is how often Run looks whether the CA of the cluster is being replaced.
	pollInterval = 5 * time.Second
)

// Renewal renews the certificate of an instance before it expires.
type Renewal struct {
	Identity   *Identity
	Connection *Connection
	// Registration registers the instance again if its certificate has expired.
	Registration *Registration

	// extended is whether the last server has sent its authorities.
	extended bool
	// early is when a renewal may begin because the CA of the cluster is being replaced, zero if
	// it is not.
	early time.Time
}

// Run renews the certificate when two thirds of its life are over, until ctx is done. An
// attempt that fails is repeated, also after the certificate has expired.
func (r *Renewal) Run(ctx context.Context) {
	delays := retry.NewDelays(maxRenewalDelay)
	var failures retry.Failures
	jitter := rand.Float64()
	for ctx.Err() == nil {
		certificate, err := r.Identity.Certificate()
		if err == nil && certificate == nil {
			err = errors.New("there is no certificate")
		}
		if err == nil {
			if wait := min(time.Until(due(certificate.Issued, certificate.Leaf.NotAfter, jitter)), r.untilEarly(certificate, jitter)); wait > 0 {
				// The wait is short because the clock may be set, and timers do not count
				// while the machine is suspended, and because the authorities may change.
				retry.Wait(ctx, min(wait, pollInterval))
				continue
			}
			err = r.renew(ctx, certificate)
		}
		delay := delays.NextBackOff()
		switch {
		case err == nil:
			delays.Reset()
			failures = retry.Failures{}
			r.settle()
			jitter = rand.Float64()
			continue
		case status.Code(err) == codes.Unimplemented:
			klog.FromContext(ctx).Info("The server does not renew certificates; the agent keeps its certificate",
				"expires", certificate.Leaf.NotAfter)
			delay = unimplementedRenewalDelay
		default:
			failures.Log(ctx, err, "Certificate renewal", "retryIn", delay.Round(time.Millisecond))
		}
		retry.Wait(ctx, delay)
	}
}

// untilEarly returns how long to wait for a renewal because the CA of the cluster is being
// replaced. Many agents learn at the same moment that it is: jitter, between 0 and 1, spreads
// their renewals over a 288th of the life of a certificate, 5 minutes of a day.
func (r *Renewal) untilEarly(certificate *Certificate, jitter float64) time.Duration {
	if unconfirmed, err := r.Identity.Unconfirmed(); err == nil && unconfirmed {
		return 0
	}
	if !r.Identity.Outdated() {
		r.early = time.Time{}
		return maxRenewalDelay
	}
	if r.early.IsZero() {
		life := certificate.Leaf.NotAfter.Sub(certificate.Issued)
		r.early = time.Now().Add(time.Duration(float64(life/288) * jitter))
	}
	return time.Until(r.early)
}

// settle delays the next early renewal: if the server is still ahead, another server may be
// behind. A server that does not send its authorities has nothing to give.
func (r *Renewal) settle() {
	if r.early.IsZero() {
		return
	}
	delay := maxRenewalDelay
	if !r.extended {
		delay = unimplementedRenewalDelay
	}
	r.early = time.Now().Add(delay)
}

// renew makes one attempt. Connections with an expired certificate are refused, so it first
// registers again. It still tries the certificate, because the clock of this machine may be wrong.
func (r *Renewal) renew(ctx context.Context, certificate *Certificate) error {
	var refused error
	if certificate.Expired(time.Now()) {
		if refused = r.registerAgain(ctx); refused == nil {
			return nil
		}
	}
	if err := r.replace(ctx, certificate.PrivateKey.(ed25519.PrivateKey)); err != nil {
		if refused != nil {
			return fmt.Errorf("the certificate expired at %s, the instance may need a nonce to register again: %w",
				certificate.Leaf.NotAfter.Format(time.RFC3339), errors.Join(refused, err))
		}
		return err
	}
	klog.FromContext(ctx).Info("Renewed the certificate")
	r.reconnect(ctx)
	return nil
}

// replace gets a certificate for the next key and stores it. Servers of older versions reject
// another key than the present one, which then stays.
func (r *Renewal) replace(ctx context.Context, present ed25519.PrivateKey) error {
	next, err := r.Identity.NextKey()
	if err != nil {
		return err
	}
	issued, err := r.call(ctx, next)
	if status.Code(err) == codes.InvalidArgument {
		klog.FromContext(ctx).Info("The server does not replace the key of the instance", "reason", err.Error())
		issued, err = r.call(ctx, present)
	}
	if err != nil {
		return err
	}
	r.extended = len(issued.AuthoritiesPEM) > 0
	return r.Identity.SetIssued(issued)
}

func (r *Renewal) registerAgain(ctx context.Context) error {
	if _, err := r.Registration.Once(ctx); err != nil {
		return err
	}
	r.reconnect(ctx)
	return nil
}

func (r *Renewal) call(ctx context.Context, key ed25519.PrivateKey) (keys.Issued, error) {
	request, err := keys.NewRequest(key)
	if err != nil {
		return keys.Issued{}, err
	}
	trusted, err := r.Identity.Trusted()
	if err != nil {
		return keys.Issued{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	conn := r.Connection.Acquire()
	defer conn.Release()
	reply, err := conn.RenewCertificate(ctx, &nstancev1.RenewCertificateRequest{
		PublicKeyPem: request.PublicKeyPEM, CertificateRequest: request.CertificateRequest, TrustedAuthorities: trusted,
	})
	if err != nil {
		return keys.Issued{}, fmt.Errorf("renew the certificate: %w", err)
	}
	return keys.Issued{CertificatePEM: reply.GetClientCertificatePem(), AuthoritiesPEM: reply.GetAuthoritiesPem()}, nil
}

// reconnect replaces the connection. If that fails, the current connection stays and uses
// the new certificate when it reconnects.
func (r *Renewal) reconnect(ctx context.Context) {
	connecting, cancel := context.WithTimeout(ctx, replaceTimeout)
	defer cancel()
	if err := r.Connection.Replace(connecting); err != nil {
		klog.FromContext(ctx).Error(err, "Connection with the new certificate failed")
	}
}

// due returns the time to renew a certificate: after 19/30 to 20/30 of its life, by jitter
// between 0 and 1, so that many agents do not renew at the same moment. The life begins
// when the certificate was issued: NotBefore is earlier.
func due(issued, expires time.Time, jitter float64) time.Time {
	life := expires.Sub(issued)
	return issued.Add(time.Duration(float64(life) * (2.0/3 - jitter/30)))
}
