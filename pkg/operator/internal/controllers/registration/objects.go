// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/base/keys"
)

// Keys of the objects (docs/certificates.md#identity).
const (
	caKey         = "ca.crt"
	nonceKey      = "nonce.jwt"
	privateKeyKey = "private.key"
	publicKeyKey  = "public.key"
)

// problem is why an object cannot be used: a reason of the condition IdentityReady, and a
// message that names object and key, and how to create them.
type problem struct {
	reason, message string
}

func (p *problem) Error() string { return p.message }

// TrustedCA returns the authorities that the operator trusts, PEM: the CA of the Secret with its
// certificate if it replaces the CA of the ConfigMap, and otherwise the CA of the ConfigMap. The
// servers hand the operator the former while the CA is replaced. secret may be nil.
func TrustedCA(configured string, secret *corev1.Secret) string {
	if secret != nil && len(secret.Data[caKey]) > 0 && secret.Annotations[v1beta1.AnnotationReplacesCA] == digest(configured) {
		return string(secret.Data[caKey])
	}
	return configured
}

// parseCA returns the certificates of the authorities that issue the servers' certificates. secret
// may be nil.
func parseCA(name string, object *corev1.ConfigMap, secret *corev1.Secret) (*ca, *problem) {
	const fix = `create it with the CA of the shard servers, for example with "nstance-admin cluster ca"`
	if object == nil || object.Data[caKey] == "" {
		return nil, &problem{reasonCAMissing, fmt.Sprintf("ConfigMap %s has no key %s, or does not exist: %s", name, caKey, fix)}
	}
	trusted := TrustedCA(object.Data[caKey], secret)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(trusted)) {
		return nil, &problem{reasonCAInvalid, fmt.Sprintf("ConfigMap %s: key %s has no PEM certificate: %s", name, caKey, fix)}
	}
	return &ca{pool: pool, pem: trusted, configured: digest(object.Data[caKey])}, nil
}

// ca is the CA of the cluster.
type ca struct {
	pool *x509.CertPool
	// pem has the certificates of pool.
	pem string
	// configured is the digest of the CA in the ConfigMap.
	configured string
}

// parseKey returns the private key of the certificate, nil if it was not created yet.
func parseKey(name string, object *corev1.Secret) (ed25519.PrivateKey, *problem) {
	if object == nil {
		return nil, nil
	}
	key, err := keys.ParsePrivate(object.Data[privateKeyKey])
	if err != nil {
		return nil, &problem{reasonKeyInvalid, fmt.Sprintf(
			"Secret %s: key %s: %v: store an Ed25519 key as PKCS #8 in PEM, or delete the Secret and the operator creates one", name, privateKeyKey, err)}
	}
	return key, nil
}

// nonceClaims are the claims by which the operator detects an administrator's mistake before a
// server does. Only the server verifies the nonce.
type nonceClaims struct {
	jwt.RegisteredClaims
	ClusterID string `json:"cluster_id"`
	Tenant    string `json:"tenant"`
}

// parseNonce returns the nonce for a tenant, a JSON web token (RFC 7519).
func parseNonce(name string, object *corev1.Secret, cluster, tenant string) (string, *problem) {
	fix := fmt.Sprintf(`store the output of "nstance-admin cluster nonce --cluster-id %s --tenant %s" there`, cluster, tenant)
	if object == nil || len(object.Data[nonceKey]) == 0 {
		return "", &problem{reasonNonceMissing, fmt.Sprintf("Secret %s has no key %s, or does not exist: %s", name, nonceKey, fix)}
	}
	invalid := func(format string, args ...any) (string, *problem) {
		return "", &problem{reasonNonceInvalid, fmt.Sprintf("Secret %s: key %s %s: %s", name, nonceKey, fmt.Sprintf(format, args...), fix)}
	}
	nonce := strings.TrimSpace(string(object.Data[nonceKey]))
	var claims nonceClaims
	if _, _, err := jwt.NewParser().ParseUnverified(nonce, &claims); err != nil {
		// The error of the parser may contain the nonce.
		return invalid("is not a JSON web token")
	}
	if claims.ClusterID != cluster {
		return invalid("is for cluster %q, this operator has --cluster-id %s", claims.ClusterID, cluster)
	}
	if claims.Tenant != tenant {
		return invalid("is for tenant %q, this operator has --tenant %s", claims.Tenant, tenant)
	}
	return nonce, nil
}

// digest identifies a nonce without revealing it, or a CA.
// fingerprints returns the digest of the fingerprints of the authorities, which neither their order
// nor the text between them changes.
func (c *ca) fingerprints() string {
	return digest(strings.Join(slices.Sorted(slices.Values(authorities.Fingerprints([]byte(c.pem)))), ","))
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// certificate is the content of the Secret with the client certificate.
type certificate struct {
	leaf *x509.Certificate
	// own: the operator obtained the certificate. If not, it belongs to an administrator and
	// is never replaced.
	own bool
	// issued is when the operator received its own certificate, by its own clock. For an
	// administrator's certificate it is the beginning of the validity.
	issued time.Time
	// nonce is the digest of the nonce that the operator registered with.
	nonce string
	// shownCA is the digest of the CA that the servers know the operator to trust, empty if the
	// certificate is an administrator's or was stored by a version that did not record it.
	shownCA string
}

// parseCertificate returns nil if the Secret has no certificate. It returns a problem if an
// administrator's certificate is invalid or an own certificate was edited; own is set in
// either case.
func parseCertificate(name string, object *corev1.Secret, roots *x509.CertPool) (*certificate, *problem) {
	if object == nil || len(object.Data[corev1.TLSCertKey]) == 0 && len(object.Data[corev1.TLSPrivateKeyKey]) == 0 {
		return nil, nil
	}
	c := &certificate{
		nonce:   object.Annotations[v1beta1.AnnotationRegisteredWith],
		shownCA: object.Annotations[v1beta1.AnnotationShownCA],
	}
	issued, own := object.Annotations[v1beta1.AnnotationCertificateIssued]
	c.own = own
	invalid := func(err error) (*certificate, *problem) {
		return c, &problem{reasonCertificateInvalid, fmt.Sprintf("Secret %s: %v", name, err)}
	}
	pair, err := tls.X509KeyPair(object.Data[corev1.TLSCertKey], object.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return invalid(fmt.Errorf("read %s and %s: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err))
	}
	c.leaf = pair.Leaf
	if err := chains(c.leaf, roots); err != nil {
		return invalid(fmt.Errorf("%s was not issued by the cluster CA: %w", corev1.TLSCertKey, err))
	}
	c.issued = c.leaf.NotBefore
	if at, err := time.Parse(time.RFC3339Nano, issued); err == nil && at.After(c.leaf.NotBefore) && at.Before(c.leaf.NotAfter) {
		c.issued = at
	}
	return c, nil
}

// chains returns an error unless an authority has issued the client certificate. It ignores
// the validity period.
func chains(leaf *x509.Certificate, roots *x509.CertPool) error {
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots:       roots,
		CurrentTime: leaf.NotAfter,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}
