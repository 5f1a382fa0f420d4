// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package renewal renews the certificate of an agent before it expires.
package renewal

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

	"nstance.dev/operator/pkg/agent/connection"
	"nstance.dev/operator/pkg/agent/identity"
	"nstance.dev/operator/pkg/agent/registration"
	"nstance.dev/operator/pkg/agent/retry"
	"nstance.dev/operator/pkg/base/keys"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	callTimeout = 10 * time.Second
	// lastDelay is the longest time between two attempts.
	lastDelay = time.Minute
	// unimplementedDelay is when a server that could not renew a certificate gets the request again:
	// another version may have taken its place.
	unimplementedDelay = time.Hour
	// connectTimeout is how long the new certificate may take to be connected with.
	connectTimeout = time.Minute
)

// Renewal renews the certificate of one instance.
type Renewal struct {
	Identity   *identity.Identity
	Connection *connection.Connection
	// Registration registers the instance again when its certificate has expired and there
	// is a new nonce.
	Registration *registration.Registration
}

// Run renews the certificate when two thirds of its life are over, until ctx is done. An
// attempt that fails is repeated, also after the certificate has expired.
func (r *Renewal) Run(ctx context.Context) {
	delays := retry.NewDelays(lastDelay)
	var failures retry.Failures
	jitter := rand.Float64()
	for ctx.Err() == nil {
		certificate, err := r.Identity.Certificate()
		if err == nil && certificate == nil {
			err = errors.New("there is no certificate")
		}
		if err == nil {
			if wait := time.Until(due(certificate.Issued, certificate.Leaf.NotAfter, jitter)); wait > 0 {
				// The clock may be set, and a paused machine does not count the time.
				retry.Wait(ctx, min(wait, lastDelay))
				continue
			}
			err = r.renew(ctx, certificate)
		}
		delay := delays.NextBackOff()
		switch {
		case err == nil:
			delays.Reset()
			failures = retry.Failures{}
			jitter = rand.Float64()
			continue
		case status.Code(err) == codes.Unimplemented:
			klog.FromContext(ctx).Info("the server does not renew certificates, the agent keeps the one it has",
				"expires", certificate.Leaf.NotAfter)
			delay = unimplementedDelay
		default:
			failures.Log(ctx, err, "certificate renewal", "retryIn", delay.Round(time.Millisecond))
		}
		retry.Wait(ctx, delay)
	}
}

// renew makes one attempt. A certificate that has expired is not accepted any more, so
// that only a nonce helps; but the clock of this machine may be wrong.
func (r *Renewal) renew(ctx context.Context, certificate *identity.Certificate) error {
	if certificate.Expired(time.Now()) {
		if err := r.registerAgain(ctx); err == nil {
			return nil
		}
	}
	certPEM, err := r.call(ctx, certificate.PrivateKey.(ed25519.PrivateKey))
	if err == nil {
		err = r.Identity.SetCertificate(certPEM)
	}
	if err != nil {
		if certificate.Expired(time.Now()) {
			return fmt.Errorf("the certificate expired at %s, the instance needs a nonce to register again: %w",
				certificate.Leaf.NotAfter.Format(time.RFC3339), err)
		}
		return err
	}
	klog.FromContext(ctx).Info("renewed the certificate")
	r.reconnect(ctx)
	return nil
}

func (r *Renewal) registerAgain(ctx context.Context) error {
	if _, err := r.Registration.Once(ctx); err != nil {
		return err
	}
	r.reconnect(ctx)
	return nil
}

func (r *Renewal) call(ctx context.Context, key ed25519.PrivateKey) ([]byte, error) {
	publicPEM, err := keys.EncodePublic(key.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn := r.Connection.Acquire()
	defer conn.Release()
	reply, err := conn.RenewCertificate(ctx, &nstancev1.RenewCertificateRequest{PublicKeyPem: publicPEM})
	if err != nil {
		return nil, fmt.Errorf("renew the certificate: %w", err)
	}
	return reply.GetClientCertificatePem(), nil
}

// reconnect connects with the new certificate. If that fails, the present connection stays,
// which uses the new certificate when it connects again.
func (r *Renewal) reconnect(ctx context.Context) {
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := r.Connection.Replace(connecting); err != nil {
		klog.FromContext(ctx).Error(err, "connection with the new certificate failed")
	}
}

// due returns when a certificate is renewed: up to a thirtieth of its life before two thirds
// of it are over, so that many agents do not renew at one moment. jitter is between 0 and 1.
// Life begins when the certificate was issued, not at its NotBefore, which is earlier.
func due(issued, expires time.Time, jitter float64) time.Time {
	life := expires.Sub(issued)
	return issued.Add(time.Duration(float64(life) * (2.0/3 - jitter/30)))
}
