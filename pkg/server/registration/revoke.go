// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/storage"
)

// Revoke revokes the certificate of a client with a serial number in hexadecimal
// digits, and all nonces of its tenant that exist.
func Revoke(ctx context.Context, store storage.Store, tenant, clientID, number string) error {
	return updateRecord(ctx, store, tenant, clientID, func(record *Record) (Record, error) {
		return record.revoked(tenant, clientID, number), nil
	})
}

// RevokeAll revokes all certificates and nonces of a client that exist, and returns
// the serial numbers of the registered ones.
func RevokeAll(ctx context.Context, store storage.Store, tenant, clientID string) (numbers []string, err error) {
	err = updateRecord(ctx, store, tenant, clientID, func(record *Record) (Record, error) {
		numbers = nil
		if record != nil && record.CertSerial != "" {
			numbers = append(numbers, record.CertSerial)
		}
		if record != nil && record.PreviousSerial != "" {
			numbers = append(numbers, record.PreviousSerial)
		}
		changed := record.revoked(tenant, clientID, numbers...)
		changed.RevokedBefore = changed.RevokedAt
		return changed, nil
	})
	return numbers, err
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

// ParseSerial returns a serial number in the form of the record. It accepts the forms
// in which openssl prints one: upper case, with leading zeros, with colons.
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
