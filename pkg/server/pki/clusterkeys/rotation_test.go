// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clusterkeys

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/server/storage"
)

// keyNames returns the names of the keys of authorities.
func keyNames(t *testing.T, store storage.Store) []string {
	t.Helper()
	names, err := encrypted(t, store).List(t.Context())
	require.NoError(t, err)
	return slices.DeleteFunc(names, func(name string) bool { return name == nonceSecret })
}

func TestTheAuthorityIsReplacedInPhases(t *testing.T) {
	store := open(t, t.TempDir())
	made, err := ensure(t, store)
	require.NoError(t, err)
	old := made.Authority.Fingerprints()[0]
	secrets := encrypted(t, store)
	loaded := func() []string {
		t.Helper()
		keys, err := ensure(t, store)
		require.NoError(t, err)
		assert.Equal(t, clusterID, keys.Authority.CommonName())
		return keys.Authority.Fingerprints()
	}
	for name, err := range map[string]error{"switch": Switch(t.Context(), store), "finish": Finish(t.Context(), store, secrets), "cancel": Cancel(t.Context(), store, secrets)} {
		assert.ErrorIs(t, err, ErrPhase, name)
	}
	require.NoError(t, Begin(t.Context(), store, secrets))
	accepted := loaded()
	require.Len(t, accepted, 2)
	assert.Equal(t, old, accepted[0], "the old authority issues")
	assert.ErrorIs(t, Begin(t.Context(), store, secrets), ErrPhase)
	assert.ErrorIs(t, Finish(t.Context(), store, secrets), ErrPhase)

	require.NoError(t, Cancel(t.Context(), store, secrets))
	assert.Equal(t, []string{old}, loaded())
	assert.Equal(t, []string{authoritySecret}, keyNames(t, store), "the key of the next authority is deleted")

	require.NoError(t, Begin(t.Context(), store, secrets))
	next := loaded()[1]
	require.NoError(t, Switch(t.Context(), store))
	assert.Equal(t, []string{next, old}, loaded())
	assert.ErrorIs(t, Cancel(t.Context(), store, secrets), ErrPhase)
	require.NoError(t, Finish(t.Context(), store, secrets))
	assert.Equal(t, []string{next}, loaded())
	object, err := store.Get(t.Context(), storage.AuthorityKey)
	require.NoError(t, err)
	assert.Equal(t, []string{next}, authorities.Fingerprints(object.Data))
	names := keyNames(t, store)
	require.Len(t, names, 1)
	assert.True(t, strings.HasPrefix(names[0], storage.NextAuthoritySecretPrefix) && storage.IsReservedSecret(names[0]), names[0])

	// The next replacement begins with an authority that has replaced another.
	require.NoError(t, Begin(t.Context(), store, secrets))
	assert.Equal(t, next, loaded()[0])
}

// TestEachKeyOfTheAuthoritiesIsSecret: the key of an authority that is only accepted must not
// get into a file either.
func TestEachKeyOfTheAuthoritiesIsSecret(t *testing.T) {
	store := open(t, t.TempDir())
	_, err := ensure(t, store)
	require.NoError(t, err)
	require.NoError(t, Begin(t.Context(), store, encrypted(t, store)))
	keys, err := load(t, store)
	require.NoError(t, err)
	for _, name := range keyNames(t, store) {
		content, err := encrypted(t, store).Get(t.Context(), name)
		require.NoError(t, err)
		assert.True(t, keys.In(content), name)
	}
}

// TestTheKeyOfTheNextAuthorityIsBoundToItsName: whoever may write to the storage cannot put the
// object of another secret in its place.
func TestTheKeyOfTheNextAuthorityIsBoundToItsName(t *testing.T) {
	store := open(t, t.TempDir())
	_, err := ensure(t, store)
	require.NoError(t, err)
	require.NoError(t, Begin(t.Context(), store, encrypted(t, store)))
	stored, _, err := ReadAuthorities(t.Context(), store)
	require.NoError(t, err)
	next, err := store.Get(t.Context(), storage.SecretPrefix+stored.Accepted[1].Secret)
	require.NoError(t, err)
	old, err := store.Get(t.Context(), storage.SecretPrefix+authoritySecret)
	require.NoError(t, err)
	_, err = store.Replace(t.Context(), storage.SecretPrefix+stored.Accepted[1].Secret, old.Data, next.ETag)
	require.NoError(t, err)
	_, err = load(t, store)
	require.ErrorContains(t, err, stored.Accepted[1].Secret)
}

// TestReplacementKilledAtEachStep expects that the authorities can be loaded after each call, and
// that the same step can be repeated.
func TestReplacementKilledAtEachStep(t *testing.T) {
	steps := []func(*testing.T, storage.Store) error{
		func(t *testing.T, s storage.Store) error { return Begin(t.Context(), s, encrypted(t, s)) },
		func(t *testing.T, s storage.Store) error { return Switch(t.Context(), s) },
		func(t *testing.T, s storage.Store) error { return Finish(t.Context(), s, encrypted(t, s)) },
	}
	for number, step := range steps {
		for _, effective := range []bool{false, true} {
			for calls := 1; ; calls++ {
				folder := t.TempDir()
				store := open(t, folder)
				_, err := ensure(t, store)
				require.NoError(t, err)
				for _, before := range steps[:number] {
					require.NoError(t, before(t, store))
				}
				err = step(t, killedStorage(store, calls, effective))
				_, loadErr := load(t, store)
				require.NoError(t, loadErr, "step %d, killed at call %d", number, calls)
				if err == nil {
					break
				}
				require.ErrorIs(t, err, errKilled)
				if again := step(t, store); again != nil {
					require.ErrorIs(t, again, ErrPhase, "step %d, killed at call %d", number, calls)
				}
				for _, after := range steps[number+1:] {
					require.NoError(t, after(t, store), "step %d, killed at call %d", number, calls)
				}
				require.Len(t, keyNames(t, store), 1, "step %d, killed at call %d", number, calls)
			}
		}
	}
}
