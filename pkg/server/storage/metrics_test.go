// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
	"nstance.dev/operator/pkg/testing/metricstest"
)

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
