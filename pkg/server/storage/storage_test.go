// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
	"nstance.dev/operator/pkg/testing/metricstest"
)

func TestKeysAreValid(t *testing.T) {
	const id = "01970a1c-e31e-7422-9cd5-e9651d11cc97-knc"
	for key, want := range map[string]string{
		storage.ConfigKey("us-west-2a"):                  "config/us-west-2a.jsonc",
		storage.GroupsKey("us-west-2a"):                  "groups/us-west-2a.jsonc",
		storage.ShardLeaderKey("us-west-2a"):             "leader/us-west-2a.json",
		storage.InstanceKey("us-west-2a", "default", id): "instance/us-west-2a/default." + id + ".json",
		storage.OperatorKey("default", "cluster"):        "operator/default.cluster.json",
		storage.TenantKey("default"):                     "tenant/default.json",
		storage.OperatorNonceKey(""):                     "operator-nonce/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.pem",
		storage.NonceIssuerKey("ci"):                     "nonce-issuer/ci.json",
		storage.AuthorityKey:                             "ca.crt",
		storage.AuthoritiesKey:                           "authorities.json",
		storage.LoadedAuthoritiesKey("us-west-2a", "1"):  "loaded-authorities/us-west-2a/1.json",
		storage.ClusterLeaderKey:                         "leader/cluster.json",
		storage.SecretPrefix + "ca.key":                  "secret/ca.key",
	} {
		if err := storage.CheckKey(key); err != nil {
			t.Error(err)
		}
		if key != want {
			t.Errorf("got key %s, want %s", key, want)
		}
	}
}

func TestLongKeys(t *testing.T) {
	for _, tc := range []struct {
		name, key string
		valid     bool
	}{
		{"a part of 255 bytes", "a/" + strings.Repeat("x", 255), true},
		{"a part of 256 bytes", "a/" + strings.Repeat("x", 256), false},
		{"a part of 86 characters and 258 bytes", strings.Repeat("日", 86), false},
		{"1024 bytes", strings.Repeat("x/", 511) + "xx", true},
		{"1025 bytes", strings.Repeat("x/", 512) + "x", false},
	} {
		if err := storage.CheckKey(tc.key); (err == nil) != tc.valid {
			t.Errorf("a key with %s: got error %v", tc.name, err)
		}
	}
}

func TestCallsAreMeasuredByOperationAndOutcome(t *testing.T) {
	var outcome error
	registry := prometheus.NewRegistry()
	store := storage.WithMetrics(storagetest.Intercepted{
		Intercept: func(context.Context, storagetest.Call, func(context.Context) error) error { return outcome },
	}, registry)
	calls := []func() error{
		func() error { _, err := store.Get(t.Context(), "key"); return err },
		func() error { _, err := store.Create(t.Context(), "key", nil); return err },
		func() error { _, err := store.Replace(t.Context(), "key", nil, "etag"); return err },
		func() error { return store.Delete(t.Context(), "key") },
		func() error { _, err := store.List(t.Context(), "key"); return err },
	}
	for _, outcome = range []error{
		nil, fmt.Errorf("get: %w", storage.ErrNotFound), fmt.Errorf("create: %w", storage.ErrConflict), errors.New("timeout"),
	} {
		for _, call := range calls {
			require.ErrorIs(t, call(), outcome)
		}
	}
	var want []string
	for _, operation := range []string{"create", "delete", "get", "list", "replace"} {
		for _, result := range []string{"conflict", "error", "not_found", "success"} {
			want = append(want, fmt.Sprintf("nstance_server_storage_call_duration_seconds{operation=%q,outcome=%q} 1", operation, result))
		}
	}
	assert.Equal(t, want, metricstest.Series(t, registry))
}

// Files of instances are made of objects of the storage, but of none that servers have
// written.
func TestKeysOfServersAreReserved(t *testing.T) {
	for key, want := range map[string]bool{
		storage.ConfigKey("a"):                               true,
		storage.AcceptedKey("a"):                             true,
		storage.GroupsKey("a"):                               true,
		storage.AcceptedLossesKey("a", "default", "workers"): true,
		storage.ShardLeaderKey("a"):                          true,
		storage.ClusterLeaderKey:                             true,
		storage.InstanceKey("a", "default", "x"):             true,
		storage.OperatorKey("default", "cluster"):            true,
		storage.OperatorNonceKey(""):                         true,
		storage.TenantKey("default"):                         true,
		storage.SecretPrefix + "app/token":                   true,
		storage.AuditLogKey("a", time.Now(), "x"):            true,
		storage.AuthorityKey:                                 false,
		storage.AuthoritiesKey:                               true,
		storage.LoadedAuthoritiesKey("a", "1"):               true,
		storage.NonceIssuerKey("ci"):                         true,
		"files/object":                                       false,
		"operators/object":                                   false,
	} {
		if got := storage.IsReserved(key); got != want {
			t.Errorf("IsReserved(%s) = %t, want %t", key, got, want)
		}
	}
}

func TestOnlyServersReadTheKeysOfAuthorities(t *testing.T) {
	for name, want := range map[string]bool{
		"ca.key": true, "ca.key.0123456789abcdef": true, "registration-nonce.key": true, "nonce-issuer/ci/1": true,
		"ca-kubelet.key": false, "my-ca.key": false, "app/ca.key": false,
	} {
		if got := storage.IsReservedSecret(name); got != want {
			t.Errorf("IsReservedSecret(%s) = %t, want %t", name, got, want)
		}
	}
}
