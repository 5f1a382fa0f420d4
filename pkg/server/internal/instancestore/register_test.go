// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
)

var errLost = errors.New("the answer was lost")

// registration returns that of a key.
func registration(key string, serial string) instance.Registration {
	at := epoch.Add(time.Hour)
	if serial == "2" {
		at = at.Add(time.Hour)
	}
	return instance.Registration{PublicKeyPEM: key, CertSerial: serial, ExpiresAt: at, RegisteredAt: epoch}
}

// register registers an instance with a key unless it has another one.
func (s *shard) register(id, key, serial string) error {
	return s.Register(s.t.Context(), id, func(present *instance.Registration) (instance.Registration, error) {
		if present != nil && present.PublicKeyPEM != key {
			return instance.Registration{}, instancestore.ErrOtherKey
		}
		return registration(key, serial), nil
	})
}

// loseAnswers makes all writes return an error after they were done, until it is called
// again.
func (s *shard) loseAnswers(lose bool) {
	if !lose {
		s.storage.intervene(nil, nil)
		return
	}
	s.storage.intervene(nil, func(method, _ string) error {
		if method == "Replace" {
			return errLost
		}
		return nil
	})
}

func TestARegistrationIsStored(t *testing.T) {
	s := newShard(t, t.TempDir())
	record := s.add()
	require.NoError(t, s.register(record.ID, "key", "1"))
	want := registration("key", "1")
	assert.Equal(t, &want, s.want(record.ID).Registration)
	assert.Equal(t, &want, s.stored(record).Registration)
	assert.ErrorIs(t, s.register(record.ID, "other", "1"), instancestore.ErrOtherKey)
	// Other changes keep it.
	require.NoError(t, s.SetProviderID(t.Context(), record.ID, "p"))
	require.NoError(t, s.RequestDeletion(t.Context(), record.ID))
	assert.Equal(t, &want, s.stored(record).Registration)
	s.restart()
	assert.Equal(t, &want, s.want(record.ID).Registration)
	s.close()
	s.loseCache()
	s.open(instancestore.Options{})
	assert.Equal(t, &want, s.want(record.ID).Registration, "without the cache")
	require.NoError(t, s.Remove(t.Context(), record.ID))
	assert.ErrorIs(t, s.register(record.ID, "key", "1"), instancestore.ErrUnknown)
	assert.ErrorIs(t, s.register("unknown", "key", "1"), instancestore.ErrUnknown)
}

// TestARegistrationWhoseAnswerWasLost binds the instance, whatever comes next.
func TestARegistrationWhoseAnswerWasLost(t *testing.T) {
	want := registration("key", "1")
	for name, next := range map[string]func(*shard, string){
		"another key": func(s *shard, id string) {
			assert.ErrorIs(t, s.register(id, "other", "2"), instancestore.ErrOtherKey)
		},
		"the provider id": func(s *shard, id string) {
			require.NoError(t, s.SetProviderID(t.Context(), id, "p"))
		},
		"another server": func(s *shard, _ string) { s.restart() },
		"a deletion request": func(s *shard, id string) {
			require.NoError(t, s.RequestDeletion(t.Context(), id))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShard(t, t.TempDir())
			record := s.add()
			s.loseAnswers(true)
			require.ErrorIs(t, s.register(record.ID, "key", "1"), errLost)
			s.loseAnswers(false)
			next(s, record.ID)
			assert.Equal(t, &want, s.stored(record).Registration)
			assert.Equal(t, &want, s.want(record.ID).Registration)
			require.ErrorIs(t, s.register(record.ID, "other", "2"), instancestore.ErrOtherKey)
			require.NoError(t, s.register(record.ID, "key", "2"))
			assert.Equal(t, "2", s.stored(record).Registration.CertSerial)
		})
	}
	t.Run("the same key", func(t *testing.T) {
		s := newShard(t, t.TempDir())
		record := s.add()
		s.loseAnswers(true)
		require.ErrorIs(t, s.register(record.ID, "key", "1"), errLost)
		s.loseAnswers(false)
		require.NoError(t, s.register(record.ID, "key", "2"))
		assert.Equal(t, "2", s.stored(record).Registration.CertSerial)
	})
}
