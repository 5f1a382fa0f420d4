// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/agent/internal/retry"
	"nstance.dev/operator/pkg/base/keys"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	registrationTimeout = 30 * time.Second
	// maxRegistrationDelay is short because a nonce is valid for minutes.
	maxRegistrationDelay = 10 * time.Second
	// The agent sends a nonce that the server has rejected again, because the cause may have been
	// the clock, the version or the configuration of the server. The delay between two rejections
	// grows from firstRejectedDelay, well within the life of a nonce, to maxRejectedDelay.
	firstRejectedDelay = 15 * time.Second
	maxRejectedDelay   = 5 * time.Minute
	// nonceInterval is the time between two checks for another nonce.
	nonceInterval = 5 * time.Second
	// identityTimeout bounds how long a registration waits for the signed identity of the machine.
	identityTimeout = 5 * time.Second
)

// errNoNonce is returned if the instance has neither a certificate nor a nonce.
var errNoNonce = errors.New("there is neither a certificate nor a nonce to register with")

// Registration exchanges the nonce of an instance for its first certificate.
type Registration struct {
	// Address is the address of the RegistrationService, host:port.
	Address string
	// Identity has the nonce and receives the certificate.
	Identity *Identity
	// IPv4, IPv6 and Hostname are reported to the server. If an address is empty, the
	// server uses the address that the provider reports.
	IPv4, IPv6, Hostname string
	// SignedIdentity returns the identity of the machine that its cloud has signed for an audience.
	// It is nil if the cloud signs none.
	SignedIdentity func(ctx context.Context, audience string) ([]byte, error)
}

// Run registers the instance unless it has a valid certificate, and returns when it has
// one, or ctx is done. It repeats a nonce that the server rejected with growing delays, and
// uses another nonce at once.
func (r *Registration) Run(ctx context.Context) error {
	delays := newDelays()
	var failures retry.Failures
	previous := ""
	for {
		nonce, err := r.Once(ctx)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if nonce != previous {
			delays, previous = newDelays(), nonce
		}
		delay := delays.after(err)
		failures.Log(ctx, err, "Registration", "retryIn", delay.Round(time.Millisecond))
		r.wait(ctx, nonce, delay)
	}
}

// delays are the delays between the attempts with the same nonce.
type delays struct {
	failed, rejected *backoff.ExponentialBackOff
}

func newDelays() delays {
	return delays{
		failed: retry.NewDelays(maxRegistrationDelay),
		rejected: backoff.NewExponentialBackOff(
			backoff.WithInitialInterval(firstRejectedDelay),
			backoff.WithMultiplier(2),
			backoff.WithRandomizationFactor(0),
			backoff.WithMaxInterval(maxRejectedDelay),
			backoff.WithMaxElapsedTime(0),
		),
	}
}

// after returns when to try again after an error.
func (d delays) after(err error) time.Duration {
	switch {
	case errors.Is(err, errNoNonce):
		return nonceInterval
	case rejected(err):
		return d.rejected.NextBackOff()
	}
	return d.failed.NextBackOff()
}

// Once tries to register the instance, unless it has a valid certificate. It returns the
// nonce that it tried. Without a nonce it tries an expired certificate.
func (r *Registration) Once(ctx context.Context) (nonce string, err error) {
	certificate, err := r.Identity.Certificate()
	if err != nil {
		return "", err
	}
	if certificate != nil && !certificate.Expired(time.Now()) {
		// The process may have ended before it removed the nonce.
		return "", r.Identity.RemoveNonce()
	}
	if nonce, err = r.Identity.Nonce(); err != nil {
		return "", err
	}
	if nonce == "" {
		if certificate == nil {
			return "", errNoNonce
		}
		return "", r.renewExpired(ctx, certificate)
	}
	// The hash of the configuration would be lost with the nonce.
	if err := r.Identity.SeedConfigHash(nonce); err != nil {
		return nonce, err
	}
	key, err := r.Identity.Key()
	if err != nil {
		return nonce, err
	}
	issued, err := r.call(ctx, key, func(request *nstancev1.RegisterClientRequest) {
		request.RegistrationNonceJwt = nonce
		request.MachineIdentity = r.signedIdentity(ctx, keys.Audience(nonce, request.GetPublicKeyPem()))
	})
	if err != nil {
		return nonce, err
	}
	if err := r.Identity.SetIssued(issued); err != nil {
		return nonce, err
	}
	klog.FromContext(ctx).Info("Registered the instance", "server", r.Address)
	return nonce, r.Identity.RemoveNonce()
}

// signedIdentity returns the signed identity of the machine, nil if there is none. Without it the
// server registers the instance unless it requires the identity.
func (r *Registration) signedIdentity(ctx context.Context, audience string) []byte {
	if r.SignedIdentity == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	signed, err := r.SignedIdentity(ctx, audience)
	if err != nil {
		klog.FromContext(ctx).Info("Registering without a signed identity of the machine", "reason", err.Error())
		return nil
	}
	return signed
}

// renewExpired gets another certificate for the key of a certificate that has expired, because no
// server has renewed it for too long.
func (r *Registration) renewExpired(ctx context.Context, expired *Certificate) error {
	issued, err := r.call(ctx, expired.PrivateKey.(ed25519.PrivateKey), func(request *nstancev1.RegisterClientRequest) {
		request.ExpiredCertificatePem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: expired.Leaf.Raw})
	})
	if err != nil {
		return fmt.Errorf("renew the certificate that expired at %s: %w", expired.Leaf.NotAfter.Format(time.RFC3339), err)
	}
	if err := r.Identity.SetIssued(issued); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Renewed the expired certificate", "server", r.Address)
	return nil
}

// call sends a request, which complete completes, over a separate connection, because servers soon
// close connections without a certificate.
func (r *Registration) call(ctx context.Context, key ed25519.PrivateKey, complete func(*nstancev1.RegisterClientRequest)) (keys.Issued, error) {
	request, err := keys.NewRequest(key)
	if err != nil {
		return keys.Issued{}, err
	}
	trusted, err := r.Identity.Trusted()
	if err != nil {
		return keys.Issued{}, err
	}
	conn, err := grpc.NewClient("passthrough:///"+r.Address, grpc.WithTransportCredentials(r.Identity.AnonymousCredentials()))
	if err != nil {
		return keys.Issued{}, fmt.Errorf("connect to %s: %w", r.Address, err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, registrationTimeout)
	defer cancel()
	message := &nstancev1.RegisterClientRequest{
		PublicKeyPem:       request.PublicKeyPEM,
		CertificateRequest: request.CertificateRequest,
		PrivateIpv4:        r.IPv4,
		PrivateIpv6:        r.IPv6,
		Hostname:           r.Hostname,
		TrustedAuthorities: trusted,
	}
	complete(message)
	reply, err := nstancev1.NewRegistrationServiceClient(conn).RegisterAgent(ctx, message)
	if err != nil {
		return keys.Issued{}, fmt.Errorf("register at %s: %w", r.Address, err)
	}
	return keys.Issued{CertificatePEM: reply.GetClientCertificatePem(), AuthoritiesPEM: reply.GetAuthoritiesPem()}, nil
}

// wait waits for delay, or until the nonce differs from before.
func (r *Registration) wait(ctx context.Context, before string, delay time.Duration) {
	for end := time.Now().Add(delay); ctx.Err() == nil && time.Now().Before(end); {
		retry.Wait(ctx, min(nonceInterval, time.Until(end)))
		if nonce, err := r.Identity.Nonce(); err == nil && nonce != "" && nonce != before {
			return
		}
	}
}

// rejected reports whether the same request would fail again.
func rejected(err error) bool {
	if errors.Is(err, ErrNonce) {
		return true
	}
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.Unimplemented:
		return true
	}
	return false
}
