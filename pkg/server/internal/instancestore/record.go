// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore

import (
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
)

// decode decodes the object under key and checks that it is the record that
// belongs there.
func decode(shard, key string, data []byte) (instance.Record, error) {
	record, err := instance.UnmarshalRecord(data)
	if err != nil {
		return instance.Record{}, err
	}
	want, err := recordKey(shard, &record)
	if err != nil {
		return instance.Record{}, err
	}
	if want != key {
		return instance.Record{}, fmt.Errorf("belongs to the key %s", want)
	}
	return record, nil
}

// recordKey returns the key of a record, or an error for an invalid record.
func recordKey(shard string, record *instance.Record) (string, error) {
	id, err := puidv7.Parse(record.ID)
	if err != nil {
		return "", err
	}
	if err := identifier.Validate(record.Tenant); err != nil {
		return "", fmt.Errorf("tenant: %w", err)
	}
	if err := identifier.Validate(record.Group); err != nil {
		return "", fmt.Errorf("group: %w", err)
	}
	if record.CreatedAt.IsZero() {
		return "", errors.New("created_at is missing")
	}
	return storage.InstanceKey(shard, record.Tenant, id.StorageKey()), nil
}
