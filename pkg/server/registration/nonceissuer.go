// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
)

// certificateHeader is the header of a nonce with the certificate of its issuer, in base64
// (https://www.rfc-editor.org/rfc/rfc7515#section-4.1.6).
const certificateHeader = "x5c"

// certifiedIssuer is a nonce issuer with its certificate.
type certifiedIssuer struct {
	pki.NonceIssuer
	certificate *x509.Certificate
}

// header returns the value of certificateHeader.
func (c *certifiedIssuer) header() []string {
	return []string{base64.StdEncoding.EncodeToString(c.certificate.Raw)}
}

// check returns an error unless servers accept a nonce of the issuer until it expires.
func (c *certifiedIssuer) check(role, tenant string, expires time.Time) error {
	if err := c.Allows(role, tenant); err != nil {
		return err
	}
	if expires.After(c.certificate.NotAfter) {
		return fmt.Errorf("the nonce would be valid until %s, the certificate of nonce issuer %q is until %s only: make a shorter one, or create the issuer again",
			expires.UTC().Format(time.RFC3339), c.Name, c.certificate.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// NonceVerifier verifies the nonces of a cluster. It is safe for concurrent use. All fields are
// mandatory.
type NonceVerifier struct {
	// Key is the cluster's nonce key.
	Key ed25519.PublicKey
	// Authority has issued the certificates of nonce issuers.
	Authority *pki.Authority
	// Store has the records of nonce issuers.
	Store storage.Store
}

// Verify is ParseNonce for a nonce that the cluster's nonce key or a nonce issuer has signed. The
// error wraps ErrInvalidNonce, unless the record of the issuer could not be read.
func (v *NonceVerifier) Verify(ctx context.Context, token string) (NonceClaims, error) {
	var signer *certifiedIssuer
	claims, err := parseNonce(token, func(unverified *jwt.Token) (any, error) {
		header, found := unverified.Header[certificateHeader]
		if !found {
			return v.Key, nil
		}
		var err error
		if signer, err = v.certified(header); err != nil {
			return nil, err
		}
		return signer.certificate.PublicKey, nil
	})
	if err != nil || signer == nil {
		return claims, err
	}
	if err := signer.Allows(claims.Kind, claims.Tenant); err != nil {
		return NonceClaims{}, fmt.Errorf("%w: %w", ErrInvalidNonce, err)
	}
	record, _, err := readNonceIssuer(ctx, v.Store, signer.Name)
	if err != nil {
		return NonceClaims{}, err
	}
	if err := record.check(signer.Name, serial(signer.certificate)); err != nil {
		return NonceClaims{}, fmt.Errorf("%w: %w", ErrInvalidNonce, err)
	}
	claims.Issuer = signer.Name
	return claims, nil
}

// certified returns the issuer in the header of a nonce whose signature is not verified yet.
func (v *NonceVerifier) certified(header any) (*certifiedIssuer, error) {
	chain, ok := header.([]any)
	if !ok || len(chain) != 1 {
		return nil, fmt.Errorf("header %s needs to be a list with one certificate", certificateHeader)
	}
	text, ok := chain[0].(string)
	if !ok {
		return nil, fmt.Errorf("header %s is not text", certificateHeader)
	}
	der, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("header %s is not base64: %w", certificateHeader, err)
	}
	issuer, certificate, err := v.Authority.VerifyNonceIssuer(der)
	if err != nil {
		return nil, err
	}
	return &certifiedIssuer{issuer, certificate}, nil
}

// NonceIssuerRecord has the certificates of a nonce issuer that the cluster accepts
// (docs/server-reference.md#nonce-issuers). A nil value has none.
type NonceIssuerRecord struct {
	Name string `json:"name"`
	// Certificates are those that have not expired, in the order in which they were issued.
	Certificates []NonceIssuerCertificate `json:"certificates"`
	// Unknown are fields that a later version has stored.
	Unknown storage.UnknownFields `json:"-"`
}

// NonceIssuerCertificate is a certificate of a nonce issuer.
type NonceIssuerCertificate struct {
	// Serial is the serial number in hexadecimal digits.
	Serial string `json:"serial"`
	// CertificatePEM is the certificate, which is no secret.
	CertificatePEM string `json:"certificate_pem"`
	// Authority is the fingerprint of the authority that has issued the certificate.
	Authority string    `json:"authority"`
	ExpiresAt time.Time `json:"expires_at"`
	// RevokedAt is when an administrator has revoked the certificate, zero if it is accepted.
	RevokedAt time.Time `json:"revoked_at,omitzero"`
}

// Usable reports whether servers accept nonces of the certificate at a time.
func (c *NonceIssuerCertificate) Usable(now time.Time) bool {
	return c.RevokedAt.IsZero() && now.Before(c.ExpiresAt)
}

// plainNonceIssuerRecord is a NonceIssuerRecord without its methods, for package json.
type plainNonceIssuerRecord NonceIssuerRecord

// MarshalJSON returns the stored form of the record.
func (r NonceIssuerRecord) MarshalJSON() ([]byte, error) {
	return storage.Encode(plainNonceIssuerRecord(r), r.Unknown)
}

// UnmarshalJSON reads the result of MarshalJSON of any version.
func (r *NonceIssuerRecord) UnmarshalJSON(data []byte) error {
	plain, unknown, err := storage.Decode[plainNonceIssuerRecord](data)
	if err != nil {
		return err
	}
	plain.Unknown = unknown
	*r = NonceIssuerRecord(plain)
	return nil
}

// check returns an error unless the issuer's certificate with a serial number is accepted.
func (r *NonceIssuerRecord) check(name, number string) error {
	if r != nil {
		for _, certificate := range r.Certificates {
			switch {
			case certificate.Serial != number:
			case certificate.RevokedAt.IsZero():
				return nil
			default:
				return fmt.Errorf("the certificate of nonce issuer %q with serial number %s was revoked at %s", name, number, certificate.RevokedAt.UTC().Format(time.RFC3339))
			}
		}
	}
	return fmt.Errorf("object %s does not have the certificate with serial number %s", storage.NonceIssuerKey(name), number)
}

// ReadNonceIssuer returns the record of a nonce issuer, nil if it does not exist.
func ReadNonceIssuer(ctx context.Context, store storage.Store, name string) (*NonceIssuerRecord, error) {
	record, _, err := readNonceIssuer(ctx, store, name)
	return record, err
}

func readNonceIssuer(ctx context.Context, store storage.Store, name string) (record *NonceIssuerRecord, etag string, err error) {
	key := storage.NonceIssuerKey(name)
	object, err := store.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read nonce issuer %s: %w", name, err)
	}
	record = &NonceIssuerRecord{}
	if err := json.Unmarshal(object.Data, record); err != nil {
		return nil, "", fmt.Errorf("read nonce issuer %s: object %s: %w", name, key, err)
	}
	return record, object.ETag, nil
}

// updateNonceIssuer stores what change has made of the record of an issuer, which may not exist.
func updateNonceIssuer(ctx context.Context, store storage.Store, name string, change func(*NonceIssuerRecord) error) error {
	const attempts = 100
	for attempt := 1; ; attempt++ {
		err := tryUpdateNonceIssuer(ctx, store, name, change)
		if attempt == attempts || !errors.Is(err, storage.ErrConflict) {
			return err
		}
	}
}

func tryUpdateNonceIssuer(ctx context.Context, store storage.Store, name string, change func(*NonceIssuerRecord) error) error {
	record, etag, err := readNonceIssuer(ctx, store, name)
	if err != nil {
		return err
	}
	if record == nil {
		record = &NonceIssuerRecord{Name: name}
	}
	if err := change(record); err != nil {
		return err
	}
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode nonce issuer %s: %w", name, err)
	}
	key := storage.NonceIssuerKey(name)
	if etag != "" {
		_, err = store.Replace(ctx, key, data, etag)
	} else {
		_, err = store.Create(ctx, key, data)
	}
	if err != nil {
		return fmt.Errorf("store nonce issuer %s: %w", name, err)
	}
	return nil
}

// NewNonceIssuer makes a key of a nonce issuer, and its certificate. Nobody accepts its nonces
// before AddNonceIssuer has stored both.
func NewNonceIssuer(authority *pki.Authority, issuer pki.NonceIssuer, lifetime time.Duration) (*x509.Certificate, ed25519.PrivateKey, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate the key of nonce issuer %s: %w", issuer.Name, err)
	}
	certificate, err := authority.SignNonceIssuer(issuer, public, lifetime)
	return certificate, key, err
}

// AddNonceIssuer stores a certificate of a nonce issuer, and its key in opened. Other certificates
// of the issuer stay accepted until they expire. expired are the serial numbers of those that it
// has removed because they have expired: their keys are of no use.
func AddNonceIssuer(
	ctx context.Context, store storage.Store, opened secrets.Store, authority *pki.Authority, certificate *x509.Certificate, key ed25519.PrivateKey,
) (expired []string, err error) {
	name, now := certificate.Subject.CommonName, time.Now()
	keyPEM, err := keys.EncodePrivate(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of nonce issuer %s: %w", name, err)
	}
	// The key is stored first: the issuer uses the last certificate of the record.
	if err := opened.Create(ctx, storage.NonceIssuerSecret(name, serial(certificate)), keyPEM); err != nil {
		return nil, err
	}
	err = updateNonceIssuer(ctx, store, name, func(record *NonceIssuerRecord) error {
		expired = nil
		record.Certificates = slices.DeleteFunc(record.Certificates, func(c NonceIssuerCertificate) bool {
			if now.Before(c.ExpiresAt) {
				return false
			}
			expired = append(expired, c.Serial)
			return true
		})
		record.Certificates = append(record.Certificates, NonceIssuerCertificate{
			Serial: serial(certificate), CertificatePEM: string(pki.EncodeCertificate(certificate)),
			Authority: authority.Issuer(certificate), ExpiresAt: certificate.NotAfter.UTC(),
		})
		return nil
	})
	return expired, err
}

// RevokeNonceIssuer revokes the certificate of a nonce issuer with a serial number, or all if
// number is empty, and with them all nonces that were made with them and not used. It returns the
// serial numbers.
func RevokeNonceIssuer(ctx context.Context, store storage.Store, name, number string) (revoked []string, err error) {
	err = updateNonceIssuer(ctx, store, name, func(record *NonceIssuerRecord) error {
		revoked = nil
		for i := range record.Certificates {
			certificate := &record.Certificates[i]
			if number != "" && certificate.Serial != number {
				continue
			}
			if certificate.RevokedAt.IsZero() {
				certificate.RevokedAt = time.Now().UTC()
			}
			revoked = append(revoked, certificate.Serial)
		}
		if len(revoked) == 0 {
			return fmt.Errorf("nonce issuer %s has no such certificate", name)
		}
		return nil
	})
	return revoked, err
}

// OpenNonceIssuer returns a signer with the key of the newest certificate of a nonce issuer. It
// reads the record of the issuer in store and its key in opened, and no key of the cluster.
func OpenNonceIssuer(ctx context.Context, store storage.Store, opened secrets.Store, name string) (*NonceSigner, error) {
	record, err := ReadNonceIssuer(ctx, store, name)
	if err != nil {
		return nil, err
	}
	if record == nil {
		return nil, fmt.Errorf("nonce issuer %s does not exist: object %s is missing", name, storage.NonceIssuerKey(name))
	}
	for _, stored := range slices.Backward(record.Certificates) {
		if !stored.Usable(time.Now()) {
			continue
		}
		return openNonceIssuer(ctx, opened, name, stored)
	}
	return nil, fmt.Errorf("nonce issuer %s has no certificate that is accepted: all have expired or were revoked", name)
}

func openNonceIssuer(ctx context.Context, opened secrets.Store, name string, stored NonceIssuerCertificate) (*NonceSigner, error) {
	certificate, err := pki.ParseCertificate([]byte(stored.CertificatePEM))
	if err != nil {
		return nil, fmt.Errorf("object %s: certificate %s: %w", storage.NonceIssuerKey(name), stored.Serial, err)
	}
	issuer, err := pki.ReadNonceIssuer(certificate)
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", storage.NonceIssuerKey(name), err)
	}
	secret := storage.NonceIssuerSecret(name, stored.Serial)
	data, err := opened.Get(ctx, secret)
	if err != nil {
		return nil, err
	}
	key, err := keys.ParsePrivate(data)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", secret, err)
	}
	if !key.Public().(ed25519.PublicKey).Equal(certificate.PublicKey) {
		return nil, fmt.Errorf("secret %s is not the key of the certificate in object %s", secret, storage.NonceIssuerKey(name))
	}
	return &NonceSigner{key: key, issuer: &certifiedIssuer{issuer, certificate}}, nil
}
