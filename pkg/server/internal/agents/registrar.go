// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package agents registers the agents of a shard's instances and decides which of their
// certificates are accepted (docs/server.md#agents).
package agents

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration"
)

// ErrInstance means that the instance of a certificate is not served: it does not exist,
// is being deleted, or has another key. Other errors wrap registration.ErrInvalidNonce,
// registration.ErrMismatch, registration.ErrPublicKey, ErrMachine, ErrSource, ErrAttestation
// or auditlog.ErrTooMany.
var ErrInstance = errors.New("the instance is not served")

// Instances has the instances of the shard.
type Instances interface {
	// Get also returns deleted instances for a while.
	Get(id string) (instance.Instance, bool)
	// Register stores the result of next as the registration of an instance. next gets the
	// present registration, or nil.
	Register(ctx context.Context, id string, next func(*instance.Registration) (instance.Registration, error)) error
}

// Groups has the groups of the shard.
type Groups interface {
	Get(key instance.GroupKey) (*groups.Group, bool)
	Config() *config.Config
}

// Registrar registers agents during one term. It is safe for concurrent use. All fields
// are mandatory.
type Registrar struct {
	Authority *pki.Authority
	// Nonces verifies nonces.
	Nonces    *registration.NonceVerifier
	Instances Instances
	Groups    Groups
	// AuditLog gets each certificate.
	AuditLog auditlog.Log
	// Revoked reads the revoked certificates of the shard's agents.
	Revoked func(ctx context.Context) (*registration.RevokedAgents, error)
	// Registered is called after an agent has registered.
	Registered func(i instance.Instance)
	// Refused is called after an agent that has not registered was refused, with the reason.
	Refused func(id, reason string)
	// Refresh makes the provider look at an instance soon.
	Refresh func(id string)
	// Failed is called when the provider contradicts what an agent says of its machine.
	Failed provider.FailureFunc

	limits, refusals auditlog.Limits
}

// Request is the request of an agent for its first certificate.
type Request struct {
	// Token is the nonce, and PublicKeyPEM the agent's key.
	Token        string
	PublicKeyPEM []byte
	// Expired is the last certificate of the agent, PEM, in place of the nonce.
	Expired []byte
	Machine Machine
	// Trusted are the fingerprints of the authorities that the agent trusts, none if it does not
	// say so.
	Trusted []string
	// Source is the address that the request comes from.
	Source netip.Addr
	// Identity is the identity of the machine that its cloud has signed, nil if there is none.
	Identity []byte
}

// Register returns a certificate for the agent that the nonce names. The key is bound to the
// instance, not to the nonce: every valid nonce of the instance accepts only the first key,
// and an agent that got no response may retry with the same key.
func (r *Registrar) Register(ctx context.Context, request Request) (*x509.Certificate, error) {
	if request.Token == "" && len(request.Expired) > 0 {
		return r.renewExpired(ctx, request)
	}
	claims, err := r.Nonces.Verify(ctx, request.Token)
	var expired *registration.ExpiredError
	if errors.As(err, &expired) {
		r.refused(expired.Subject, err)
	}
	if err != nil {
		return nil, err
	}
	certificate, err := r.registerWith(ctx, request, claims)
	if err != nil {
		r.refused(claims.Subject, err)
		return nil, err
	}
	return certificate, nil
}

// refused records why the agent of an instance may not register. The caller had its nonce.
func (r *Registrar) refused(id string, err error) {
	if i, found := r.Instances.Get(id); found && i.Registration == nil {
		r.Refused(id, cut(err.Error()))
	}
}

// maxRefused is the maximum length of the reason why an agent is refused, in bytes.
const maxRefused = 300

func cut(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxRefused)], "") }

// registerWith is Register for a nonce whose signature and times are valid.
func (r *Registrar) registerWith(ctx context.Context, request Request, claims registration.NonceClaims) (*x509.Certificate, error) {
	i, err := r.checkNonce(claims)
	if err != nil {
		return nil, err
	}
	revoked, err := r.Revoked(ctx)
	if err != nil {
		return nil, fmt.Errorf("register the agent of instance %s: %w", i.ID, err)
	}
	if err := revoked.CheckNonce(claims); err != nil {
		return nil, err
	}
	key, err := parseKey(request.PublicKeyPEM)
	if err != nil {
		return nil, err
	}
	machine, err := request.Machine.validated()
	if err != nil {
		return nil, err
	}
	if provider.ChecksSource(r.Groups.Config().Shard.Infra.Options) {
		err = compareSource(&i, request.Source)
	}
	if err == nil {
		err = machine.compare(&i)
	}
	if err == nil {
		err = r.attest(ctx, &i, request)
	}
	switch {
	case errors.Is(err, errNoAddress), errors.Is(err, errNoProviderID):
		r.Refresh(i.ID)
		return nil, fmt.Errorf("register the agent of instance %s: %w", i.ID, err)
	case errors.Is(err, provider.ErrNotVerified):
		return nil, fmt.Errorf("register the agent of instance %s: %w", i.ID, err)
	case err != nil:
		return nil, r.refuse(ctx, &i, err)
	}
	register := func(present *instance.Registration, next instance.Registration) (instance.Registration, error) {
		changed, err := machine.register(present, next)
		changed.Trust = next.Trust
		return changed, err
	}
	certificate, err := r.issue(ctx, &i, key, request.Trusted, claims.Reason(), register)
	if isRefused(err) {
		err = fmt.Errorf("%w: %w", registration.ErrInvalidNonce, err)
	}
	if err != nil {
		return nil, fmt.Errorf("register the agent of instance %s: %w", i.ID, err)
	}
	klog.FromContext(ctx).Info("Registered agent", "instance", i.ID, "tenant", i.Tenant, "group", i.Group,
		"serial", certificate.SerialNumber.Text(16), "expires", certificate.NotAfter)
	r.Registered(i)
	return certificate, nil
}

// register returns the registration for a first certificate, which next describes. present is
// nil unless the agent repeats its request.
func (m Machine) register(present *instance.Registration, next instance.Registration) (instance.Registration, error) {
	next.RegisteredAt = time.Now()
	if present != nil {
		used, err := withUsedKey(*present, next.PublicKeyPEM, time.Now())
		if err != nil {
			return next, err
		}
		used.CertSerial, used.ExpiresAt = next.CertSerial, next.ExpiresAt
		next = used
	}
	next.IPv4, next.IPv6, next.Hostname = m.IPv4, m.IPv6, m.Hostname
	return next, nil
}

// isRefused reports whether the instance store has refused a registration because of the
// instance: another attempt fails in the same way.
func isRefused(err error) bool {
	return errors.Is(err, instancestore.ErrUnknown) || errors.Is(err, instancestore.ErrOtherKey)
}

// issue signs a certificate and stores the registration that change makes from the present
// registration. It returns no certificate that is not stored, and none that is not in the audit
// log.
func (r *Registrar) issue(ctx context.Context, i *instance.Instance, key ed25519.PublicKey, trusted []string, reason string,

	change func(present *instance.Registration, next instance.Registration) (instance.Registration, error),
) (*x509.Certificate, error) {
	if err := r.limits.Check(i.ID); err != nil {
		return nil, err
	}
	client := pki.Client{ID: i.ID, Tenant: i.Tenant, Role: pki.RoleAgent}
	certificate, err := r.Authority.SignClient(client, key, r.Groups.Config().AgentCertificateTTL)
	if err != nil {
		return nil, err
	}
	next, err := registered(certificate)
	if err != nil {
		return nil, err
	}
	next.Trust = r.Authority.Trust(certificate, trusted)
	err = r.Instances.Register(ctx, i.ID, func(present *instance.Registration) (instance.Registration, error) {
		return change(present, next)
	})
	if err != nil {
		return nil, err
	}
	request := audit.RequestFrom(ctx)
	err = r.AuditLog.Write(ctx, auditlog.Entry{
		Action: audit.IssueCertificate, Name: next.CertSerial, Tenant: i.Tenant, Instance: i.ID, ExpiresAt: next.ExpiresAt,
		Reason: reason, Writer: request.Writer, RequestID: request.ID,
	})
	if err != nil {
		return nil, err
	}
	return certificate, nil
}

// registered returns the registration with the key, the serial number and the expiry of a
// certificate.
func registered(certificate *x509.Certificate) (instance.Registration, error) {
	key, ok := certificate.PublicKey.(ed25519.PublicKey)
	if !ok {
		return instance.Registration{}, fmt.Errorf("%w: it is %T, needs to be Ed25519", registration.ErrPublicKey, certificate.PublicKey)
	}
	keyPEM, err := keys.EncodePublic(key)
	if err != nil {
		return instance.Registration{}, fmt.Errorf("encode the public key: %w", err)
	}
	return instance.Registration{
		PublicKeyPEM: string(keyPEM),
		CertSerial:   certificate.SerialNumber.Text(16),
		ExpiresAt:    certificate.NotAfter,
	}, nil
}

// parseKey returns the Ed25519 key of a request.
func parseKey(publicKeyPEM []byte) (ed25519.PublicKey, error) {
	key, err := keys.ParsePublic(publicKeyPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", registration.ErrPublicKey, err)
	}
	return key, nil
}

// checkNonce returns the instance of a nonce whose signature and times are valid. The
// error says why the nonce is not for an instance that may register at this shard.
func (r *Registrar) checkNonce(c registration.NonceClaims) (instance.Instance, error) {
	config := r.Groups.Config()
	switch {
	case c.Kind != pki.RoleAgent:
		return instance.Instance{}, fmt.Errorf("%w: it is for kind %q, needs to be for %q", registration.ErrInvalidNonce, c.Kind, pki.RoleAgent)
	case c.ClusterID != config.ClusterID:
		return instance.Instance{}, fmt.Errorf("%w: it is for cluster %q, this is %q", registration.ErrMismatch, c.ClusterID, config.ClusterID)
	case c.Shard != config.Shard.ID:
		return instance.Instance{}, fmt.Errorf("%w: it is for shard %q, this is %q", registration.ErrMismatch, c.Shard, config.Shard.ID)
	}
	id, err := puidv7.Parse(c.Subject)
	if err != nil {
		return instance.Instance{}, fmt.Errorf("%w: %w", registration.ErrInvalidNonce, err)
	}
	i, found := r.Instances.Get(c.Subject)
	switch {
	case !found:
		return instance.Instance{}, fmt.Errorf("%w: instance %s is not known", registration.ErrInvalidNonce, c.Subject)
	case i.Tenant != c.Tenant:
		return instance.Instance{}, fmt.Errorf("%w: instance %s is not of tenant %q", registration.ErrMismatch, c.Subject, c.Tenant)
	case !i.DeletedAt.IsZero():
		return instance.Instance{}, fmt.Errorf("%w: instance %s was deleted", registration.ErrInvalidNonce, c.Subject)
	case i.BeingDeleted():
		return instance.Instance{}, fmt.Errorf("%w: instance %s is being deleted", registration.ErrInvalidNonce, c.Subject)
	}
	if kind, known := r.kindOf(&i); known && id.Prefix != kind {
		return instance.Instance{}, fmt.Errorf("%w: instance %s is not of kind %q", registration.ErrInvalidNonce, c.Subject, kind)
	}
	return i, nil
}

// kindOf returns the kind of the template that an instance was created from. It is unknown if
// the instance was created from another configuration.
func (r *Registrar) kindOf(i *instance.Instance) (string, bool) {
	group, found := r.Groups.Get(i.Key())
	if !found || !group.IsCurrent(i.InfraConfigHash) {
		return "", false
	}
	effective, err := provision.Effective(r.Groups.Config(), group, &i.Record)
	if err != nil {
		return "", false
	}
	return effective.Kind, true
}

// Admit returns the instance of an agent whose certificate chains to the authority. The
// error wraps ErrInstance if calls with the certificate are not served.
//
// A lost record is created again without a registration, and the agent, whose nonce has
// expired, cannot register again. Its certificate proves that it has registered: the
// registration is stored again.
func (r *Registrar) Admit(ctx context.Context, client pki.Client, certificate *x509.Certificate) (instance.Instance, error) {
	i, found := r.Instances.Get(client.ID)
	switch {
	case !found:
		return i, fmt.Errorf("%w: instance %s is not known", ErrInstance, client.ID)
	case !i.DeletedAt.IsZero():
		return i, fmt.Errorf("%w: instance %s was deleted", ErrInstance, client.ID)
	case i.Tenant != client.Tenant:
		return i, fmt.Errorf("%w: instance %s is not of tenant %q", ErrInstance, client.ID, client.Tenant)
	}
	own, err := registered(certificate)
	if err != nil {
		return i, err
	}
	if i.Registration == nil {
		if err := r.restore(ctx, &i, certificate, own); err != nil {
			return i, err
		}
	}
	return i, r.useKey(ctx, &i, own.PublicKeyPEM)
}

// restore stores the registration that a certificate proves, unless the instance has one.
func (r *Registrar) restore(ctx context.Context, i *instance.Instance, certificate *x509.Certificate, own instance.Registration) error {
	own.RegisteredAt = certificate.NotBefore.Add(pki.ClockSkew)
	err := r.Instances.Register(ctx, i.ID, func(present *instance.Registration) (instance.Registration, error) {
		if present != nil {
			own = *present
		}
		return own, nil
	})
	switch {
	case isRefused(err):
		return fmt.Errorf("%w: %w", ErrInstance, err)
	case err != nil:
		return fmt.Errorf("store the registration of instance %s again: %w", i.ID, err)
	}
	klog.FromContext(ctx).Info("Stored the registration of an agent again, which was lost", "instance", i.ID)
	i.Registration = &own
	r.Registered(*i)
	return nil
}
