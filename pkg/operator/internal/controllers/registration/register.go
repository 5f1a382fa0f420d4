// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// registerTimeout is the timeout of the registration at one shard. It is short, because
// the shards are called one after the other.
const registerTimeout = 5 * time.Second

// registerAtShards calls the servers of the shards until the server of the cluster's leader
// issues a certificate. If a server rejects the nonce, no other server is called, because all
// servers verify it in the same way.
func (c *Controller) registerAtShards(ctx context.Context, pool *x509.CertPool, nonce string, request keys.Request) (keys.Issued, error) {
	endpoints := c.options.Endpoints.Endpoints()
	if len(endpoints) == 0 {
		return keys.Issued{}, errors.New("register: no shard is configured")
	}
	var failures shardErrors
	for _, id := range slices.Sorted(maps.Keys(endpoints)) {
		issued, err := c.registerAt(ctx, id, endpoints[id].Registration, pool, nonce, request)
		if err == nil {
			return issued, nil
		}
		if nonceRejected(err) {
			return keys.Issued{}, fmt.Errorf("register at shard %q: %w", id, err)
		}
		failures.add(id, err)
	}
	return keys.Issued{}, fmt.Errorf("register: %w", failures.join())
}

// nonceRejected reports whether err is a server's final rejection of the nonce, and not a
// temporary error or an error of this server (docs/protocol.md#registration).
func nonceRejected(err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.InvalidArgument:
		return true
	}
	return false
}

// registerAt sends the registration request to one server.
func (c *Controller) registerAt(
	ctx context.Context, id, address string, pool *x509.CertPool, nonce string, request keys.Request,
) (keys.Issued, error) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(c.options.Credentials(pool, id)))
	if err != nil {
		return keys.Issued{}, fmt.Errorf("create a client for %s: %w", address, err)
	}
	defer func() { _ = connection.Close() }()
	response, err := nstancev1.NewRegistrationServiceClient(connection).RegisterOperator(ctx, &nstancev1.RegisterClientRequest{
		RegistrationNonceJwt: nonce,
		PublicKeyPem:         request.PublicKeyPEM,
		CertificateRequest:   request.CertificateRequest,
		TrustedAuthorities:   request.TrustedAuthorities,
	})
	if err != nil {
		return keys.Issued{}, err
	}
	return keys.Issued{CertificatePEM: response.GetClientCertificatePem(), AuthoritiesPEM: response.GetAuthoritiesPem()}, nil
}

// shardErrors joins the errors of calls to several shards.
type shardErrors struct {
	errs []error
}

func (e *shardErrors) add(id string, err error) {
	e.errs = append(e.errs, fmt.Errorf("shard %s: %s", id, shard.Message(err)))
}

func (e *shardErrors) join() error {
	if len(e.errs) == 0 {
		return errors.New("no shard is configured")
	}
	return errors.Join(e.errs...)
}

// storeKey stores a new key. The Secret is immutable
// (https://kubernetes.io/docs/concepts/configuration/secret/#secret-immutable): if a Secret
// exists that the cache does not have yet, the API server rejects the change, and its key
// stays.
func (c *Controller) storeKey(ctx context.Context, key ed25519.PrivateKey) error {
	privateKeyPEM, err := keys.EncodePrivate(key)
	if err != nil {
		return fmt.Errorf("encode the key of the client certificate: %w", err)
	}
	publicKeyPEM, err := keys.EncodePublic(key.Public().(ed25519.PublicKey))
	if err != nil {
		return fmt.Errorf("encode the public key: %w", err)
	}
	written, err := c.secrets.Apply(ctx, corev1ac.Secret(c.options.KeySecret, c.namespace).
		WithType(corev1.SecretTypeOpaque).
		WithImmutable(true).
		WithData(map[string][]byte{privateKeyKey: privateKeyPEM, publicKeyKey: publicKeyPEM}), controllers.Apply)
	if err != nil {
		return fmt.Errorf("apply Secret %s: %w", c.name(c.options.KeySecret), err)
	}
	c.keyWrites.Record(written)
	klog.FromContext(ctx).Info("Key for the client certificate created", "secret", klog.KObj(written))
	return nil
}

// issued is a certificate that a server has just issued.
type issued struct {
	keys.Issued
	keyPEM []byte
	// nonce is the digest of the nonce that the operator registered with.
	nonce string
	// ca is the CA that the operator trusted before.
	ca *ca
}

// storeCertificate stores a certificate in the Secret from which every replica reads it, together
// with the authorities that the server has sent, so that no crash separates them. An unusable
// certificate is not stored.
func (c *Controller) storeCertificate(ctx context.Context, i issued) error {
	now := c.clock.Now()
	pair, err := tls.X509KeyPair(i.CertificatePEM, i.keyPEM)
	if err != nil {
		return fmt.Errorf("the server issued a certificate that cannot be used: %w", err)
	}
	caPEM := []byte(i.ca.pem)
	if len(i.AuthoritiesPEM) > 0 {
		caPEM = i.AuthoritiesPEM
	}
	if err := authorities.Verify(pair.Leaf, caPEM); err != nil {
		return fmt.Errorf("the server issued a certificate of another authority: %w", err)
	}
	if !now.Before(pair.Leaf.NotAfter) {
		return fmt.Errorf("the server issued a certificate that expires at %s, which has passed: the clocks differ", format(pair.Leaf.NotAfter))
	}
	existing, err := c.secret(c.options.Cert, c.options.CertSecret)
	if err != nil {
		return err
	}
	// The type of a Secret is immutable
	// (https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/validation/validation.go).
	secretType := corev1.SecretTypeTLS
	if existing != nil {
		secretType = existing.Type
	}
	written, err := c.secrets.Apply(ctx, corev1ac.Secret(c.options.CertSecret, c.namespace).
		WithType(secretType).
		WithAnnotations(map[string]string{
			v1beta1.AnnotationCertificateIssued: now.UTC().Format(time.RFC3339Nano),
			v1beta1.AnnotationRegisteredWith:    i.nonce,
			v1beta1.AnnotationReplacesCA:        i.ca.configured,
			v1beta1.AnnotationShownCA:           i.ca.fingerprints(),
		}).
		WithData(map[string][]byte{corev1.TLSCertKey: i.CertificatePEM, corev1.TLSPrivateKeyKey: i.keyPEM, caKey: caPEM}), controllers.Apply)
	if err != nil {
		return fmt.Errorf("apply Secret %s: %w", c.name(c.options.CertSecret), err)
	}
	c.certWrites.Record(written)
	klog.FromContext(ctx).Info("Client certificate stored", "secret", klog.KObj(written),
		"serial", pair.Leaf.SerialNumber.Text(16), "expires", pair.Leaf.NotAfter)
	return nil
}
