// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clusterkeys

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

const clusterID = "prod"

func open(t *testing.T, folder string) storage.Store {
	t.Helper()
	store, err := file.Open(folder)
	require.NoError(t, err)
	return store
}

func encrypted(t *testing.T, store storage.Store) *secrets.Encrypted {
	t.Helper()
	s, err := secrets.New(store, bytes.Repeat([]byte{7}, 32))
	require.NoError(t, err)
	return s
}

func ensure(t *testing.T, store storage.Store) (*Keys, error) {
	t.Helper()
	return Ensure(t.Context(), store, encrypted(t, store), clusterID)
}

func load(t *testing.T, store storage.Store) (*Keys, error) {
	t.Helper()
	return Load(t.Context(), store, encrypted(t, store))
}

func wantSame(t *testing.T, got, want *Keys) {
	t.Helper()
	assert.Equal(t, want.Authority.CertificatePEM(), got.Authority.CertificatePEM(), "the certificates of the authority differ")
	if !got.Nonce.Equal(want.Nonce) {
		t.Error("the keys of the nonces differ")
	}
}

func TestEnsureCreatesKeysOnce(t *testing.T) {
	folder := t.TempDir()
	if _, err := load(t, open(t, folder)); !errors.Is(err, storage.ErrNotFound) {
		t.Fatalf("before there are any: got %v", err)
	}
	made, err := ensure(t, open(t, folder))
	require.NoError(t, err)
	if got := made.Authority.CommonName(); got != clusterID {
		t.Errorf("the authority is %q, want %q", got, clusterID)
	}
	loaded, err := load(t, open(t, folder))
	require.NoError(t, err)
	wantSame(t, loaded, made)
	again, err := ensure(t, open(t, folder))
	require.NoError(t, err)
	wantSame(t, again, made)

	// Public data is stored in plain text, secrets are encrypted.
	store := open(t, folder)
	object, err := store.Get(t.Context(), "ca.crt")
	if err != nil || !bytes.Equal(object.Data, made.Authority.CertificatePEM()) {
		t.Errorf("ca.crt is not the certificate: %v", err)
	}
	for _, key := range []string{"secret/ca.key", "secret/registration-nonce.key"} {
		object, err := store.Get(t.Context(), key)
		if err != nil || len(object.Data) == 0 || bytes.Contains(object.Data, []byte("PRIVATE")) {
			t.Errorf("%s is missing or not encrypted: %v", key, err)
		}
	}
}

// errKilled simulates that the process was killed.
var errKilled = errors.New("killed")

// killedStorage is the storage of a process that is killed at one of its calls: just
// before the call takes effect, or just after.
func killedStorage(store storage.Store, calls int, effective bool) storage.Store {
	return storagetest.Intercepted{Store: store, Intercept: func(ctx context.Context, _ storagetest.Call, do func(context.Context) error) error {
		calls--
		switch {
		case calls > 0:
			return do(ctx)
		case calls == 0 && effective:
			_ = do(ctx)
		}
		return errKilled
	}}
}

// TestEnsureKilledAtEachStep expects the next Ensure to create missing keys, and not to
// replace keys that another process may have read.
func TestEnsureKilledAtEachStep(t *testing.T) {
	for _, effective := range []bool{false, true} {
		for calls := 1; ; calls++ {
			folder := t.TempDir()
			_, err := ensure(t, killedStorage(open(t, folder), calls, effective))
			if err == nil {
				if calls < 9 {
					t.Errorf("Ensure needs %d calls, so few that some step was not tested", calls-1)
				}
				break
			}
			if !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			store := open(t, folder)
			seen := objects(t, store)
			if _, err := load(t, store); err != nil && !errors.Is(err, storage.ErrNotFound) {
				t.Errorf("killed at call %d: Load returns %v", calls, err)
			}
			if _, err := ensure(t, store); err != nil {
				t.Errorf("killed at call %d: the next Ensure returns %v", calls, err)
			}
			after := objects(t, store)
			for key, etag := range seen {
				if after[key] != etag {
					t.Errorf("killed at call %d: object %s was replaced", calls, key)
				}
			}
			if len(after) != 3 {
				t.Errorf("killed at call %d: the objects are %v", calls, after)
			}
		}
	}
}

// objects returns the etags by key.
func objects(t *testing.T, store storage.Store) map[string]string {
	t.Helper()
	infos, err := store.List(t.Context(), "")
	require.NoError(t, err)
	etags := map[string]string{}
	for _, info := range infos {
		etags[info.Key] = info.ETag
	}
	return etags
}

// overtakenStorage is the storage of a process that another process overtakes just
// before one of its calls.
func overtakenStorage(store storage.Store, calls int, other func()) storage.Store {
	return storagetest.Intercepted{Store: store, Intercept: func(ctx context.Context, _ storagetest.Call, do func(context.Context) error) error {
		if calls--; calls == 0 {
			other()
		}
		return do(ctx)
	}}
}

func TestTwoServersGetSameKeys(t *testing.T) {
	for calls := 1; ; calls++ {
		folder := t.TempDir()
		var others *Keys
		mine, err := ensure(t, overtakenStorage(open(t, folder), calls, func() {
			var err error
			others, err = ensure(t, open(t, folder))
			require.NoError(t, err)
		}))
		if err != nil {
			t.Fatalf("overtakenStorage at call %d: %v", calls, err)
		}
		if others == nil {
			break
		}
		wantSame(t, mine, others)
	}
}

func TestManyServersGetSameKeys(t *testing.T) {
	folder := t.TempDir()
	made := make([]*Keys, 8)
	var servers sync.WaitGroup
	for i := range made {
		servers.Go(func() {
			var err error
			if made[i], err = ensure(t, open(t, folder)); err != nil {
				t.Error(err)
			}
		})
	}
	servers.Wait()
	for _, keys := range made {
		if keys != nil && made[0] != nil {
			wantSame(t, keys, made[0])
		}
	}
}

// TestNothingReplacesAuthority because clients that trust its certificate would
// trust no server any more.
func TestNothingReplacesAuthority(t *testing.T) {
	foreign, err := pki.NewAuthority(clusterID)
	require.NoError(t, err)
	t.Run("key lost", func(t *testing.T) {
		store := open(t, t.TempDir())
		_, err := store.Create(t.Context(), storage.AuthorityKey, foreign.CertificatePEM())
		require.NoError(t, err)
		before := objects(t, store)
		if _, err := ensure(t, store); err == nil || !strings.Contains(err.Error(), "the key of the authority is lost: secret ca.key is missing") {
			t.Errorf("got %v", err)
		}
		if after := objects(t, store); len(after) != 1 || after["ca.crt"] != before["ca.crt"] {
			t.Errorf("the objects are %v", after)
		}
	})
	t.Run("certificate of another key", func(t *testing.T) {
		store := open(t, t.TempDir())
		_, err := ensure(t, store)
		require.NoError(t, err)
		require.NoError(t, store.Delete(t.Context(), storage.AuthorityKey))
		_, err = store.Create(t.Context(), storage.AuthorityKey, foreign.CertificatePEM())
		require.NoError(t, err)
		_, ensureErr := ensure(t, store)
		_, loadErr := load(t, store)
		for _, err := range []error{ensureErr, loadErr} {
			if err == nil || !strings.Contains(err.Error(), "belongs to another key") {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("encrypted with another key", func(t *testing.T) {
		store := open(t, t.TempDir())
		_, err := ensure(t, store)
		require.NoError(t, err)
		before := objects(t, store)
		other, err := secrets.New(store, bytes.Repeat([]byte{8}, 32))
		require.NoError(t, err)
		if _, err := Ensure(t.Context(), store, other, clusterID); err == nil || errors.Is(err, storage.ErrNotFound) {
			t.Errorf("got %v", err)
		}
		if after := objects(t, store); len(after) != len(before) {
			t.Errorf("the objects are %v, before they were %v", after, before)
		}
	})
}

// The keys are found in each form that a secret or an object of the storage may have.
func TestKeysAreFoundInAContent(t *testing.T) {
	made, err := ensure(t, open(t, t.TempDir()))
	require.NoError(t, err)
	other, err := ensure(t, open(t, t.TempDir()))
	require.NoError(t, err)
	authority, err := made.Authority.KeyPEM()
	require.NoError(t, err)
	nonce, err := keys.EncodePrivate(made.Nonce)
	require.NoError(t, err)
	for _, key := range [][]byte{authority, nonce} {
		block, _ := pem.Decode(key)
		assert.True(t, made.In(key), "as it is stored")
		assert.True(t, made.In(bytes.Join([][]byte{[]byte("a text"), made.Authority.CertificatePEM(), bytes.ReplaceAll(key, []byte("\n"), []byte("\r\n"))}, []byte("\n"))), "after other content")
		assert.True(t, made.In(block.Bytes), "PKCS #8")
		assert.False(t, other.In(key), "keys of another cluster")
	}
	assert.True(t, made.In(made.Nonce), "as bytes")
	for _, content := range [][]byte{nil, []byte("-----BEGIN"), made.Authority.CertificatePEM(), made.Nonce.Public().(ed25519.PublicKey)} {
		assert.False(t, made.In(content), "%q", content)
	}
}

// TestDigest: servers of a cluster have the same digests, and nobody else can make them.
func TestDigest(t *testing.T) {
	store := open(t, t.TempDir())
	first, err := ensure(t, store)
	require.NoError(t, err)
	second, err := ensure(t, store)
	require.NoError(t, err)
	other, err := ensure(t, open(t, t.TempDir()))
	require.NoError(t, err)
	digest := first.Digest([]byte("content"))
	assert.Equal(t, digest, second.Digest([]byte("content")))
	assert.NotEqual(t, digest, first.Digest([]byte("other content")))
	assert.NotEqual(t, digest, other.Digest([]byte("content")))
}
