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

// Record is the registration of an operator as stored (server document).
//
// Its key is made of tenant and client id, and every operator of a tenant has
// the cluster's id for its own: one that registers takes the place of the one
// before. That is right, as the record tells of the latest certificate and
// opens nothing by itself.
type Record struct {
	ClientID string `json:"client_id"`
	Tenant   string `json:"tenant"`
	// PublicKeyPEM is the key of the latest certificate.
	PublicKeyPEM string `json:"public_key_pem"`
	// CertSerial is its serial number in hexadecimal digits.
	CertSerial string `json:"cert_serial"`
	// RegisteredAt is when the client used its nonce. A renewal leaves it.
	RegisteredAt time.Time `json:"registered_at"`
	// ExpiresAt is when the latest certificate does.
	ExpiresAt time.Time `json:"expires_at"`
}

// putRecord stores a registration in place of the one before.
func putRecord(ctx context.Context, store storage.Store, record Record) error {
	// A conflict means that another call has just stored its own. More of them than
	// there can be calls mean that something else is in the way.
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
		return fmt.Errorf("reading the registration: %w", err)
	}
	if record.RegisteredAt.IsZero() {
		record.RegisteredAt = registeredAt(object.Data)
	}
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encoding the registration: %w", err)
	}
	if exists {
		_, err = store.Replace(ctx, key, data, object.ETag)
	} else {
		_, err = store.Create(ctx, key, data)
	}
	if err != nil {
		return fmt.Errorf("storing the registration: %w", err)
	}
	return nil
}

// registeredAt returns when the client of a stored registration registered. One
// that is not there or cannot be read begins now: nothing depends on it.
func registeredAt(data []byte) time.Time {
	var stored Record
	if err := json.Unmarshal(data, &stored); err != nil {
		return time.Now().UTC()
	}
	return stored.RegisteredAt
}

// serial returns the serial number of a certificate as it is recorded.
func serial(certificate *x509.Certificate) string {
	return certificate.SerialNumber.Text(16)
}
