// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"nstance.dev/operator/pkg/server/storage"
)

// Record is the stored registration of an operator (docs/server.md#storage).
//
// Its key consists of tenant and client id, and the client id of every operator of
// a tenant is the cluster id, so a new registration replaces the previous one. The
// record describes the latest certificate and grants no access.
type Record struct {
	ClientID string `json:"client_id"`
	Tenant   string `json:"tenant"`
	// PublicKeyPEM is the key of the latest certificate.
	PublicKeyPEM string `json:"public_key_pem"`
	// CertSerial is its serial number in hexadecimal digits.
	CertSerial string `json:"cert_serial"`
	// RegisteredAt is when the client used its nonce. A renewal keeps it.
	RegisteredAt time.Time `json:"registered_at"`
	// ExpiresAt is when the latest certificate expires.
	ExpiresAt time.Time `json:"expires_at"`
}

// putRecord stores a registration and replaces an existing one.
func putRecord(ctx context.Context, store storage.Store, record Record) error {
	// A conflict means that a concurrent call stored its registration. With so many
	// conflicts there must be another cause.
	const attempts = 100
	for attempt := 1; ; attempt++ {
		err := replaceRecord(ctx, store, record)
		if attempt == attempts || !errors.Is(err, storage.ErrConflict) {
			return err
		}
	}
}

func replaceRecord(ctx context.Context, store storage.Store, record Record) error {
	key := storage.OperatorKey(record.Tenant, record.ClientID)
	object, err := store.Get(ctx, key)
	exists := err == nil
	if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("read the registration: %w", err)
	}
	if record.RegisteredAt.IsZero() {
		record.RegisteredAt = registeredAt(object.Data)
	}
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode the registration: %w", err)
	}
	if exists {
		_, err = store.Replace(ctx, key, data, object.ETag)
	} else {
		_, err = store.Create(ctx, key, data)
	}
	if err != nil {
		return fmt.Errorf("store the registration: %w", err)
	}
	return nil
}

// registeredAt returns when the client of a stored registration registered. For a
// missing or invalid registration it returns the present time, since nothing
// depends on it.
func registeredAt(data []byte) time.Time {
	var stored Record
	if err := json.Unmarshal(data, &stored); err != nil {
		return time.Now().UTC()
	}
	return stored.RegisteredAt
}

// serial returns the serial number of a certificate in the form of the record.
func serial(certificate *x509.Certificate) string {
	return certificate.SerialNumber.Text(16)
}
