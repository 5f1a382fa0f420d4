// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// WithMetrics returns store whose calls are measured by operation and outcome.
func WithMetrics(store Store, registry prometheus.Registerer) Store {
	m := &measured{store: store, durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "nstance_server_storage_call_duration_seconds",
		Help:    "Duration of calls to the object storage, by operation and outcome: success, not_found, conflict or error.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	}, []string{"operation", "outcome"})}
	registry.MustRegister(m.durations)
	return m
}

type measured struct {
	store     Store
	durations *prometheus.HistogramVec
}

// begin returns a function that measures the call from now on.
func (m *measured) begin(operation string) (end func(error)) {
	start := time.Now()
	return func(err error) {
		m.durations.WithLabelValues(operation, outcomeOf(err)).Observe(time.Since(start).Seconds())
	}
}

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "success"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.Is(err, ErrConflict):
		return "conflict"
	default:
		return "error"
	}
}

func (m *measured) Get(ctx context.Context, key string) (object Object, err error) {
	end := m.begin("get")
	object, err = m.store.Get(ctx, key)
	end(err)
	return object, err
}

func (m *measured) Create(ctx context.Context, key string, data []byte) (etag string, err error) {
	end := m.begin("create")
	etag, err = m.store.Create(ctx, key, data)
	end(err)
	return etag, err
}

func (m *measured) Replace(ctx context.Context, key string, data []byte, etag string) (newETag string, err error) {
	end := m.begin("replace")
	newETag, err = m.store.Replace(ctx, key, data, etag)
	end(err)
	return newETag, err
}

func (m *measured) Delete(ctx context.Context, key string) error {
	end := m.begin("delete")
	err := m.store.Delete(ctx, key)
	end(err)
	return err
}

func (m *measured) List(ctx context.Context, prefix string) (infos []Info, err error) {
	end := m.begin("list")
	infos, err = m.store.List(ctx, prefix)
	end(err)
	return infos, err
}
