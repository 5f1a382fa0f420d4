// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
)

// Grace is how long a certificate is accepted after a registration or a renewal has replaced
// it (docs/protocol.md#certificates): the response with the next certificate may be lost, and
// the client opens connections with the old certificate until it has stored the next one.
const Grace = 10 * time.Minute

// Record is the stored registration of an operator (docs/server-reference.md#storage).
//
// Its key consists of tenant and client id, and the client id of every operator of
// a tenant is the cluster id, so a new registration replaces the previous one. Check
// decides which certificates the record accepts.
type Record struct {
	ClientID string `json:"client_id"`
	Tenant   string `json:"tenant"`
	// PublicKeyPEM is the key of the latest certificate.
	PublicKeyPEM string `json:"public_key_pem"`
	// CertSerial is the serial number of the latest certificate in hexadecimal digits. It is
	// empty if only certificates without a registration were revoked.
	CertSerial string `json:"cert_serial"`
	// RegisteredAt is when the client used its nonce. A renewal keeps it.
	RegisteredAt time.Time `json:"registered_at"`
	// ExpiresAt is when the latest certificate expires.
	ExpiresAt time.Time `json:"expires_at"`
	// PreviousSerial is the serial number of the certificate that the latest certificate
	// replaced, which is accepted until PreviousUntil.
	PreviousSerial string    `json:"previous_serial,omitempty"`
	PreviousUntil  time.Time `json:"previous_until,omitzero"`
	// RevokedSerials are the serial numbers of revoked certificates, sorted.
	RevokedSerials []string `json:"revoked_serials,omitempty"`
	// RevokedAt is when a certificate was last revoked. Nonces that were created
	// before cannot be used any more.
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	// RevokedBefore revokes all certificates without a registration whose validity begins
	// before it.
	RevokedBefore time.Time `json:"revoked_before,omitzero"`
	// Trust is nil if the client does not say which authorities it trusts.
	Trust *pki.Trust `json:"trust,omitempty"`
	// Unknown are fields that a later version has stored.
	Unknown storage.UnknownFields `json:"-"`
}

// plainRecord is a Record without its methods, for package json.
type plainRecord Record

// MarshalJSON returns the stored form of the record.
func (r Record) MarshalJSON() ([]byte, error) { return storage.Encode(plainRecord(r), r.Unknown) }

// UnmarshalJSON reads the result of MarshalJSON of any version.
func (r *Record) UnmarshalJSON(data []byte) error {
	plain, unknown, err := storage.Decode[plainRecord](data)
	if err != nil {
		return err
	}
	plain.Unknown = unknown
	*r = Record(plain)
	return nil
}

// ReadRecord returns the registration of a client, nil if it does not exist.
func ReadRecord(ctx context.Context, store storage.Store, tenant, clientID string) (*Record, error) {
	record, _, err := readRecord(ctx, store, storage.OperatorKey(tenant, clientID))
	return record, err
}

func readRecord(ctx context.Context, store storage.Store, key string) (record *Record, etag string, err error) {
	object, err := store.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the registration: %w", err)
	}
	record = &Record{}
	if err := json.Unmarshal(object.Data, record); err != nil {
		return nil, "", fmt.Errorf("read the registration: object %s: %w", key, err)
	}
	return record, object.ETag, nil
}

// updateRecord stores the result of change as the registration of a client. change gets the
// stored registration, or nil. It is called again after a concurrent write.
func updateRecord(ctx context.Context, store storage.Store, tenant, clientID string, change func(*Record) (Record, error)) error {
	// So many conflicts must have another cause than concurrent calls.
	const attempts = 100
	for attempt := 1; ; attempt++ {
		err := tryUpdateRecord(ctx, store, storage.OperatorKey(tenant, clientID), change)
		if attempt == attempts || !errors.Is(err, storage.ErrConflict) {
			return err
		}
	}
}

func tryUpdateRecord(ctx context.Context, store storage.Store, key string, change func(*Record) (Record, error)) error {
	record, etag, err := readRecord(ctx, store, key)
	if err != nil {
		return err
	}
	changed, err := change(record)
	if err != nil {
		return err
	}
	if record != nil {
		changed.Unknown = record.Unknown
	}
	data, err := json.Marshal(changed)
	if err != nil {
		return fmt.Errorf("encode the registration: %w", err)
	}
	if record != nil {
		_, err = store.Replace(ctx, key, data, etag)
	} else {
		_, err = store.Create(ctx, key, data)
	}
	if err != nil {
		return fmt.Errorf("store the registration: %w", err)
	}
	return nil
}

// serial returns the serial number of a certificate in the form of the record.
func serial(certificate *x509.Certificate) string {
	return certificate.SerialNumber.Text(16)
}

// RecordIssued stores the registration of a client whose certificate an administrator has
// issued, so that it can be listed and revoked like an operator's. trust has the authorities that
// the administrator stores with it.
func RecordIssued(ctx context.Context, store storage.Store, client pki.Client, certificate *x509.Certificate, trust *pki.Trust) error {
	key, ok := certificate.PublicKey.(ed25519.PublicKey)
	if !ok {
		return fmt.Errorf("the key of the certificate is %T, needs to be Ed25519", certificate.PublicKey)
	}
	keyPEM, err := keys.EncodePublic(key)
	if err != nil {
		return fmt.Errorf("encode the public key: %w", err)
	}
	return updateRecord(ctx, store, client.Tenant, client.ID, func(record *Record) (Record, error) {
		return record.issued(Record{
			ClientID: client.ID, Tenant: client.Tenant, PublicKeyPEM: string(keyPEM),
			CertSerial: serial(certificate), ExpiresAt: certificate.NotAfter, Trust: trust,
		}, "", time.Time{}), nil
	})
}

// Errors of Check. The client needs another certificate: its renewed certificate, or a
// certificate for a new nonce.
var (
	// ErrExpired means that the certificate has expired.
	ErrExpired = errors.New("the client certificate has expired")
	// ErrRevoked means that an administrator revoked the certificate.
	ErrRevoked = errors.New("the client certificate was revoked")
	// ErrReplaced means that another certificate was issued since, and that the time in which
	// both are accepted is over.
	ErrReplaced = errors.New("the client certificate was replaced")
)

// Check returns an error if the operator may not use a certificate, which chains to
// the cluster's authority, at a time. Without a registration, for which r is nil or
// has no serial number, every such certificate is accepted unless it was revoked: an
// administrator or a server of an older version may have issued it.
func (r *Record) Check(certificate *x509.Certificate, now time.Time) error {
	number := serial(certificate)
	if now.After(certificate.NotAfter) {
		return rejected(ErrExpired, number, "at "+certificate.NotAfter.UTC().Format(time.RFC3339))
	}
	switch {
	case r == nil:
		return nil
	case slices.Contains(r.RevokedSerials, number):
		return rejected(ErrRevoked, number, "")
	case r.CertSerial == "":
		if certificate.NotBefore.Before(r.RevokedBefore) {
			return rejected(ErrRevoked, number, "")
		}
		return nil
	case r.CertSerial == number:
		return nil
	case r.PreviousSerial == number && now.Before(r.PreviousUntil):
		return nil
	}
	return rejected(ErrReplaced, number, "by "+r.CertSerial)
}

func rejected(reason error, serial, detail string) error {
	if detail != "" {
		detail = " " + detail
	}
	return fmt.Errorf("%w%s (serial number %s): register with a new nonce unless a newer certificate is at hand", reason, detail, serial)
}

// issued returns the record after a certificate was issued. next describes the certificate,
// and r, which may be nil, is the record before. The certificate replaces the certificate
// with the serial number previous, if not empty, which expires at expires.
func (r *Record) issued(next Record, previous string, expires time.Time) Record {
	now := time.Now().UTC()
	if r != nil {
		next.RevokedSerials, next.RevokedAt, next.RevokedBefore = r.RevokedSerials, r.RevokedAt, r.RevokedBefore
		if next.RegisteredAt.IsZero() {
			next.RegisteredAt = r.RegisteredAt
		}
	}
	if next.RegisteredAt.IsZero() {
		next.RegisteredAt = now
	}
	if previous == "" || slices.Contains(next.RevokedSerials, previous) {
		return next
	}
	next.PreviousSerial, next.PreviousUntil = previous, now.Add(Grace)
	if expires.Before(next.PreviousUntil) {
		next.PreviousUntil = expires.UTC()
	}
	return next
}

// Revoke revokes the certificate of a client with a serial number in hexadecimal
// digits, and all nonces of its tenant that exist.
func Revoke(ctx context.Context, store storage.Store, tenant, clientID, number string) error {
	return updateRecord(ctx, store, tenant, clientID, func(record *Record) (Record, error) {
		return record.revoked(tenant, clientID, number), nil
	})
}

// RevokeAll revokes all certificates and nonces of a client that exist. It returns the serial
// numbers of the registered certificates.
func RevokeAll(ctx context.Context, store storage.Store, tenant, clientID string) (registered []string, err error) {
	err = updateRecord(ctx, store, tenant, clientID, func(record *Record) (Record, error) {
		registered = record.serials()
		changed := record.revoked(tenant, clientID, registered...)
		// The serial numbers of certificates without a registration are unknown.
		changed.RevokedBefore = changed.RevokedAt
		return changed, nil
	})
	return registered, err
}

// serials returns the serial numbers of the registered certificates: the latest certificate and
// the certificate that it replaced. The record may be nil.
func (r *Record) serials() []string {
	if r == nil {
		return nil
	}
	var numbers []string
	for _, number := range []string{r.CertSerial, r.PreviousSerial} {
		if number != "" {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// revoked returns a copy of the record, which may be nil, with more revoked serial
// numbers.
func (r *Record) revoked(tenant, clientID string, numbers ...string) Record {
	changed := Record{ClientID: clientID, Tenant: tenant}
	if r != nil {
		changed = *r
	}
	changed.RevokedSerials = slices.Concat(changed.RevokedSerials, numbers)
	slices.Sort(changed.RevokedSerials)
	changed.RevokedSerials = slices.Compact(changed.RevokedSerials)
	changed.RevokedAt = time.Now().UTC()
	return changed
}

// ParseSerial returns a serial number in the form of the record. It accepts the forms in
// which openssl prints it: upper case, with leading zeros, with colons.
func ParseSerial(text string) (string, error) {
	digits := strings.TrimLeft(strings.ToLower(strings.ReplaceAll(text, ":", "")), "0")
	padded := digits
	if len(padded)%2 == 1 {
		padded = "0" + padded
	}
	if _, err := hex.DecodeString(padded); err != nil || digits == "" {
		return "", fmt.Errorf("%q is not a serial number in hexadecimal digits", text)
	}
	return digits, nil
}
