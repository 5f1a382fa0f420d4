// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/objectformat"
)

// Grace is how long the certificate that was replaced by a registration or a renewal
// is accepted (docs/protocol.md#certificates): the response with the next one may be
// lost, and connections are opened with it until the client has stored the next one.
const Grace = 10 * time.Minute

// Record is the stored registration of an operator (docs/server.md#storage).
//
// Its key consists of tenant and client id, and the client id of every operator of
// a tenant is the cluster id, so a new registration replaces the previous one. Check
// decides which certificates the record accepts.
type Record struct {
	ClientID string `json:"client_id"`
	Tenant   string `json:"tenant"`
	// PublicKeyPEM is the key of the latest certificate.
	PublicKeyPEM string `json:"public_key_pem"`
	// CertSerial is its serial number in hexadecimal digits. It is empty if only
	// certificates were revoked that no registration issued.
	CertSerial string `json:"cert_serial"`
	// RegisteredAt is when the client used its nonce. A renewal keeps it.
	RegisteredAt time.Time `json:"registered_at"`
	// ExpiresAt is when the latest certificate expires.
	ExpiresAt time.Time `json:"expires_at"`
	// PreviousSerial is the serial number of the certificate that the latest one
	// replaced, which is accepted until PreviousUntil.
	PreviousSerial string    `json:"previous_serial,omitempty"`
	PreviousUntil  time.Time `json:"previous_until,omitzero"`
	// RevokedSerials are the serial numbers of revoked certificates, sorted.
	RevokedSerials []string `json:"revoked_serials,omitempty"`
	// RevokedAt is when a certificate was last revoked. Nonces that were created
	// before cannot be used any more.
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	// RevokedBefore revokes all certificates that no registration issued and whose
	// validity begins before it.
	RevokedBefore time.Time `json:"revoked_before,omitzero"`
	// Unknown are fields that a later version has stored.
	Unknown objectformat.Fields `json:"-"`
}

// plainRecord is a Record in the encoding of package json.
type plainRecord Record

// MarshalJSON returns the stored form of the record.
func (r Record) MarshalJSON() ([]byte, error) { return objectformat.Encode(plainRecord(r), r.Unknown) }

// UnmarshalJSON reads what MarshalJSON returns, of any version.
func (r *Record) UnmarshalJSON(data []byte) error {
	plain, unknown, err := objectformat.Decode[plainRecord](data)
	if err != nil {
		return err
	}
	plain.Unknown = unknown
	*r = Record(plain)
	return nil
}

// ReadRecord returns the registration of a client, nil if there is none.
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

// updateRecord stores what change returns for the registration of a client, nil if
// there is none. It calls change again after a concurrent write.
func updateRecord(ctx context.Context, store storage.Store, tenant, clientID string, change func(*Record) (Record, error)) error {
	// With so many conflicts there must be another cause than concurrent calls.
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
// issued, so that it can be listed and revoked like that of an operator.
func RecordIssued(ctx context.Context, store storage.Store, client pki.Client, certificate *x509.Certificate) error {
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
			CertSerial: serial(certificate), ExpiresAt: certificate.NotAfter,
		}, "", time.Time{}), nil
	})
}
