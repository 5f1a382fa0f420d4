// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package secretstest tests the stores of secrets, and imitates the services that store them.
// The imitations were written from the documentation, and reject requests that it does not
// describe.
package secretstest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// Backend is a store that a test has to itself.
type Backend struct {
	// Open returns the secrets of a cluster as another process opens them.
	Open func(cluster string) secrets.Store
	// Faults are the faults of the requests, which TestWithoutFaults does not use.
	Faults *Faults
	// Provider is the value of cluster.secrets.provider.
	Provider string
	// Text is true if values must be UTF-8.
	Text bool
	// MaxValue is the size of the largest value, in bytes.
	MaxValue int
}

// Test tests a store. newBackend returns an empty store for each test.
func Test(t *testing.T, newBackend func(*testing.T) Backend) {
	TestWithoutFaults(t, newBackend)
	runCases(t, newBackend, []testCase{
		{"nothing is sent when the context is done", testDone},
		{"an error is not a missing secret", testErrors},
		{"requests are repeated", testRepeated},
		{"errors have no value", testConfidential},
		{"the keys of a cluster are created once", testKeys},
		{"the permissions are documented", testPermissions},
	})
}

// TestWithoutFaults tests a store of a service that cannot inject faults.
func TestWithoutFaults(t *testing.T, newBackend func(*testing.T) Backend) {
	runCases(t, newBackend, []testCase{
		{"secrets are stored, replaced, listed and deleted", testLifecycle},
		{"clusters have secrets of their own", testClusters},
		{"a list has all pages", testPages},
		{"values that are not text", testBinary},
		{"values that are too large", testSize},
		{"of several creations at a time one succeeds", testRace},
	})
}

type testCase struct {
	name string
	test func(*testing.T, Backend)
}

func runCases(t *testing.T, newBackend func(*testing.T) Backend, cases []testCase) {
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, newBackend(t)) })
	}
}

// names are names of secrets that files of instances contain.
var names = []string{"another.env", "plain", "tokens/database.json", "tokens/x/y-z_1.pem"}

func testLifecycle(t *testing.T, b Backend) {
	s := b.Open("a")
	list := func() []string {
		t.Helper()
		list, err := s.List(t.Context())
		require.NoError(t, err)
		return list
	}
	assert.Empty(t, list())
	for _, name := range append([]string{storage.AuthoritySecret}, names...) {
		_, err := s.Get(t.Context(), name)
		require.ErrorIs(t, err, storage.ErrNotFound)
		require.ErrorContains(t, err, "read ")
		require.ErrorIs(t, s.Delete(t.Context(), name), storage.ErrNotFound)
	}
	for _, value := range []string{"first", "second"} {
		for _, name := range names {
			require.NoError(t, s.Set(t.Context(), name, []byte(value+name)))
			got, err := b.Open("a").Get(t.Context(), name)
			require.NoError(t, err)
			assert.Equal(t, value+name, string(got))
		}
	}
	assert.Equal(t, names, list())
	require.NoError(t, s.Delete(t.Context(), names[2]))
	_, err := s.Get(t.Context(), names[2])
	require.ErrorIs(t, err, storage.ErrNotFound)
	assert.Equal(t, slices.Delete(slices.Clone(names), 2, 3), list())
	require.NoError(t, s.Set(t.Context(), names[2], []byte("again")))

	require.NoError(t, s.Create(t.Context(), storage.AuthoritySecret, []byte("first")))
	require.ErrorIs(t, s.Create(t.Context(), storage.AuthoritySecret, []byte("second")), storage.ErrConflict)
	got, err := s.Get(t.Context(), storage.AuthoritySecret)
	require.NoError(t, err)
	assert.Equal(t, "first", string(got))
	assert.Contains(t, list(), storage.AuthoritySecret)
}

func testClusters(t *testing.T, b Backend) {
	for _, cluster := range []string{"a", "a-b"} {
		require.NoError(t, b.Open(cluster).Set(t.Context(), "name", []byte(cluster)))
	}
	// Its name begins with the end of the other cluster's prefix.
	require.NoError(t, b.Open("a").Set(t.Context(), "b-name", []byte("own")))
	for cluster, want := range map[string][]string{"a": {"b-name", "name"}, "a-b": {"name"}} {
		got, err := b.Open(cluster).Get(t.Context(), "name")
		require.NoError(t, err)
		assert.Equal(t, cluster, string(got))
		list, err := b.Open(cluster).List(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, list)
	}
}

func testPages(t *testing.T, b Backend) {
	s := b.Open("a")
	var want []string
	for n := range 25 {
		want = append(want, fmt.Sprintf("secret-%02d", n))
		require.NoError(t, s.Set(t.Context(), want[n], []byte("x")))
	}
	list, err := s.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, want, list)
}

func testBinary(t *testing.T, b Backend) {
	value := make([]byte, 256)
	for n := range value {
		value[n] = byte(n)
	}
	s := b.Open("a")
	err := s.Set(t.Context(), "binary", value)
	if b.Text {
		require.ErrorContains(t, err, "not UTF-8")
		return
	}
	require.NoError(t, err)
	got, err := s.Get(t.Context(), "binary")
	require.NoError(t, err)
	assert.Equal(t, value, got)
}

func testSize(t *testing.T, b Backend) {
	s := b.Open("a")
	largest := bytes.Repeat([]byte("x"), b.MaxValue)
	require.NoError(t, s.Set(t.Context(), "largest", largest))
	got, err := s.Get(t.Context(), "largest")
	require.NoError(t, err)
	assert.Len(t, got, b.MaxValue)
	for _, value := range [][]byte{nil, append(largest, 'x')} {
		require.ErrorContains(t, s.Set(t.Context(), "other", value), fmt.Sprintf("%d bytes", len(value)))
		require.ErrorContains(t, s.Create(t.Context(), storage.NonceSecret, value), fmt.Sprintf("%d bytes", len(value)))
	}
}

// testRace expects that every server reads the value of the successful call at once.
func testRace(t *testing.T, b Backend) {
	for round := range 20 {
		cluster := fmt.Sprintf("c%d", round)
		var servers sync.WaitGroup
		var mu sync.Mutex
		values, succeeded := map[string]bool{}, 0
		for n := range 6 {
			servers.Go(func() {
				s := b.Open(cluster)
				err := s.Create(t.Context(), storage.AuthoritySecret, fmt.Appendf(nil, "of server %d", n))
				got, getErr := s.Get(t.Context(), storage.AuthoritySecret)
				mu.Lock()
				defer mu.Unlock()
				assert.NoError(t, getErr)
				values[string(got)] = true
				if err == nil {
					succeeded++
				} else {
					assert.ErrorIs(t, err, storage.ErrConflict)
				}
			})
		}
		servers.Wait()
		if len(values) != 1 || succeeded != 1 {
			t.Fatalf("%d creations succeeded, and the values that were read are %v", succeeded, values)
		}
	}
}

func testDone(t *testing.T, b Backend) {
	s := b.Open("a")
	b.Faults.Set(Lost, 0, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Get(ctx, "name")
	require.Error(t, err)
	require.Error(t, s.Create(ctx, storage.AuthoritySecret, []byte("x")))
	require.Error(t, s.Set(ctx, "name", []byte("x")))
	require.Error(t, s.Delete(ctx, "name"))
	_, err = s.List(ctx)
	require.Error(t, err)
	assert.Zero(t, b.Faults.Count(), "requests")
}

// always is more requests than any call makes.
const always = 1 << 30

// testErrors: if a server took an error for a missing secret, it would create a second
// authority.
func testErrors(t *testing.T, b Backend) {
	s := b.Open("a")
	require.NoError(t, s.Create(t.Context(), storage.AuthoritySecret, []byte("x")))
	require.NoError(t, s.Set(t.Context(), "name", []byte("x")))
	for kind, fault := range kinds {
		b.Faults.Set(fault, 0, always)
		for _, name := range []string{storage.AuthoritySecret, "name", "missing"} {
			_, err := s.Get(t.Context(), name)
			if err == nil || errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrConflict) {
				t.Errorf("%s: got %v", kind, err)
			}
		}
		_, err := s.List(t.Context())
		assert.Error(t, err, kind)
		err = s.Delete(t.Context(), "missing")
		if err == nil || errors.Is(err, storage.ErrNotFound) {
			t.Errorf("%s: Delete returns %v", kind, err)
		}
	}
}

// testRepeated expects that two transient faults are no failure.
func testRepeated(t *testing.T, b Backend) {
	s := b.Open("a")
	for _, fault := range []Kind{Lost, Unavailable, Throttled} {
		b.Faults.Set(fault, 0, 2)
		require.NoError(t, s.Set(t.Context(), "name", []byte("x")))
		b.Faults.Set(fault, 0, 2)
		_, err := s.Get(t.Context(), "name")
		require.NoError(t, err)
		b.Faults.Set(fault, 0, 2)
		_, err = s.List(t.Context())
		require.NoError(t, err)
	}
}

func testConfidential(t *testing.T, b Backend) {
	const value = "hunter2-hunter2-hunter2"
	s := b.Open("a")
	require.NoError(t, s.Set(t.Context(), "stored", []byte(value)))
	for kind, fault := range kinds {
		for from := range 3 {
			for operation, call := range map[string]func() error{
				"get":    func() error { _, err := s.Get(t.Context(), "stored"); return err },
				"set":    func() error { return s.Set(t.Context(), "stored", []byte(value)) },
				"create": func() error { return s.Create(t.Context(), storage.NonceSecret, []byte(value)) },
			} {
				b.Faults.Set(fault, from, always)
				err := call()
				if err == nil {
					continue
				}
				for _, secret := range []string{value, "hunter2", base64.StdEncoding.EncodeToString([]byte(value))[:20]} {
					if strings.Contains(err.Error(), secret) {
						t.Errorf("%s, %s from request %d: the error has the value: %v", operation, kind, from, err)
					}
				}
			}
		}
	}
}

// testKeys creates the keys of a cluster, with a fault in each request of a server. The next
// server finishes, and no key that was read changes.
func testKeys(t *testing.T, b Backend) {
	for kind, fault := range kinds {
		for from := 0; ; from++ {
			cluster := fmt.Sprintf("%s-%d", strings.ReplaceAll(kind, " ", "-"), from)
			objects, err := file.Open(t.TempDir())
			require.NoError(t, err)
			b.Faults.Set(fault, from, always)
			_, _ = clusterkeys.Ensure(t.Context(), objects, b.Open(cluster), cluster)
			requests := b.Faults.Count()
			b.Faults.Set(fault, 0, 0)
			before, err := clusterkeys.Load(t.Context(), objects, b.Open(cluster))
			if err != nil && !errors.Is(err, storage.ErrNotFound) {
				t.Fatalf("%s: Load returns %v", cluster, err)
			}
			after, err := clusterkeys.Ensure(t.Context(), objects, b.Open(cluster), cluster)
			if err != nil {
				t.Fatalf("%s: the next Ensure returns %v", cluster, err)
			}
			if before != nil && (!before.Nonce.Equal(after.Nonce) || !bytes.Equal(before.Authority.CertificatePEM(), after.Authority.CertificatePEM())) {
				t.Errorf("%s: the keys have changed", cluster)
			}

			// Afterwards no fault of a read makes others.
			b.Faults.Set(fault, from, always)
			_, _ = clusterkeys.Ensure(t.Context(), objects, b.Open(cluster), cluster)
			b.Faults.Set(fault, 0, 0)
			again, err := clusterkeys.Load(t.Context(), objects, b.Open(cluster))
			require.NoError(t, err)
			if !again.Nonce.Equal(after.Nonce) || !bytes.Equal(again.Authority.CertificatePEM(), after.Authority.CertificatePEM()) {
				t.Errorf("%s: other keys were created", cluster)
			}
			if requests <= from {
				break // all requests had their fault
			}
		}
	}
}

// testPermissions compares the table of docs/server-reference.md#keys with the calls of servers, and
// with the calls that only nstance-admin makes.
func testPermissions(t *testing.T, b Backend) {
	document, err := os.ReadFile("../../../../docs/server-reference.md")
	require.NoError(t, err)
	row := regexp.MustCompile("(?m)^\\| `" + b.Provider + "` \\|.*\\|(.*)\\|$").FindSubmatch(document)
	require.NotNil(t, row)
	ofServers, ofAdmin, found := strings.Cut(string(row[1]), "for nstance-admin also")
	require.True(t, found)
	// The tests do not cover a customer-managed key.
	ofAdmin, _, _ = strings.Cut(ofAdmin, "of a key of your own")

	s := b.Open("a")
	require.NoError(t, s.Create(t.Context(), storage.AuthoritySecret, []byte("first")))
	require.ErrorIs(t, s.Create(t.Context(), storage.AuthoritySecret, []byte("second")), storage.ErrConflict)
	_, err = s.Get(t.Context(), storage.AuthoritySecret)
	require.NoError(t, err)
	// If two servers create a secret at the same time, one of them adds a version that it has
	// to remove again, where the service has versions. A lost response looks the same.
	b.Faults.Set(Lost, 2, 1)
	_ = s.Create(t.Context(), storage.NonceSecret, []byte("first"))
	b.Faults.Set(Lost, 0, 0)
	servers := b.Faults.Permissions()
	assert.Equal(t, documentedPermissions(ofServers), servers, "of servers")

	require.NoError(t, s.Set(t.Context(), names[0], []byte("value")))
	require.NoError(t, s.Set(t.Context(), names[0], []byte("another")))
	_, err = s.List(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Delete(t.Context(), names[0]))
	var others []string
	for _, permission := range b.Faults.Permissions() {
		if !slices.Contains(servers, permission) {
			others = append(others, permission)
		}
	}
	assert.Equal(t, documentedPermissions(ofAdmin), others, "of nstance-admin")
}

// documentedPermissions returns the permissions in a text, in order. A name that ends with a
// colon begins those after it.
func documentedPermissions(text string) []string {
	all := map[string]bool{}
	for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
		all[match[1]] = true
	}
	return slices.Sorted(maps.Keys(all))
}
