// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore

import (
	"context"
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/cache"
)

// ErrOtherKey means that an instance is registered with another key.
var ErrOtherKey = errors.New("the instance is registered with another public key")

// Register stores the registration that next returns for the present one, nil if there
// is none. next is called again when another writer has changed the record. An error of
// next stores nothing and is returned. After any other error it is unknown whether the
// registration is stored: an agent that repeats its request with the same key is safe.
// The error wraps ErrUnknown also if the instance was deleted.
func (s *Store) Register(ctx context.Context, id string, next func(*instance.Registration) (instance.Registration, error)) error {
	exists := false
	err := s.change(id, "store the registration", func(row cache.Row) error {
		exists = true
		// Of two attempts that conflict the second sees what is stored.
		const attempts = 2
		for attempt := 1; ; attempt++ {
			registration, err := next(row.Record.Registration)
			if err != nil {
				return err
			}
			changed := row
			changed.Record.Registration = normalized(registration)
			if err = s.save(ctx, changed); !errors.Is(err, ErrOtherKey) || attempt == attempts {
				return err
			}
			// The row in memory is older than the record.
			if err := s.reread(ctx, &row); err != nil {
				return err
			}
		}
	})
	if err == nil && !exists {
		return fmt.Errorf("store the registration of instance %s: %w", id, ErrUnknown)
	}
	return err
}

// reread replaces the record of row by the stored one.
func (s *Store) reread(ctx context.Context, row *cache.Row) error {
	key, err := recordKey(s.shard, &row.Record)
	if err != nil {
		return err
	}
	object, err := s.storage.Get(ctx, key)
	if err != nil {
		return err
	}
	record, err := decode(s.shard, key, object.Data)
	if err != nil {
		return err
	}
	row.Record, row.ETag = record, object.ETag
	s.put(ctx, *row)
	return nil
}

// normalized returns the registration with the times that decoding it returns.
func normalized(r instance.Registration) *instance.Registration {
	r.ExpiresAt, r.RegisteredAt = r.ExpiresAt.Round(0).UTC(), r.RegisteredAt.Round(0).UTC()
	return &r
}

// mergeRegistrations returns which of two registrations of one instance a record must
// have: the one with the later certificate. Another key is an error, whichever was first.
func mergeRegistrations(ours, stored *instance.Registration) (*instance.Registration, error) {
	switch {
	case stored == nil:
		return ours, nil
	case ours == nil:
		return stored, nil
	case ours.PublicKeyPEM != stored.PublicKeyPEM:
		return nil, ErrOtherKey
	case ours.ExpiresAt.Before(stored.ExpiresAt):
		return stored, nil
	}
	return ours, nil
}
