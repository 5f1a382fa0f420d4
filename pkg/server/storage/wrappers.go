// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storage

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// WithTimeout returns store with a timeout for each call, which timeout returns at the
// beginning of the call.
func WithTimeout(store Store, timeout func() time.Duration) Store {
	return &timed{store, timeout}
}

type timed struct {
	store   Store
	timeout func() time.Duration
}

func (t *timed) Get(ctx context.Context, key string) (Object, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return t.store.Get(ctx, key)
}

// GetChanged implements ChangeReader.
func (t *timed) GetChanged(ctx context.Context, key, etag string) (Object, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return GetChanged(ctx, t.store, key, etag)
}

func (t *timed) Create(ctx context.Context, key string, data []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return t.store.Create(ctx, key, data)
}

func (t *timed) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return t.store.Replace(ctx, key, data, etag)
}

func (t *timed) Delete(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return t.store.Delete(ctx, key)
}

func (t *timed) List(ctx context.Context, prefix string) ([]Info, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout())
	defer cancel()
	return t.store.List(ctx, prefix)
}

// WithPrefix returns the part of a storage below a prefix, which may end in a slash or not.
// Keys are relative to the prefix, except in error texts. With an empty prefix it returns
// store itself.
func WithPrefix(store Store, prefix string) Store {
	if prefix == "" {
		return store
	}
	return &prefixed{store: store, prefix: strings.TrimSuffix(prefix, "/") + "/"}
}

type prefixed struct {
	store  Store
	prefix string
}

func (p *prefixed) Get(ctx context.Context, key string) (Object, error) {
	return p.store.Get(ctx, p.prefix+key)
}

// GetChanged implements ChangeReader.
func (p *prefixed) GetChanged(ctx context.Context, key, etag string) (Object, error) {
	return GetChanged(ctx, p.store, p.prefix+key, etag)
}

func (p *prefixed) Create(ctx context.Context, key string, data []byte) (string, error) {
	return p.store.Create(ctx, p.prefix+key, data)
}

func (p *prefixed) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	return p.store.Replace(ctx, p.prefix+key, data, etag)
}

func (p *prefixed) Delete(ctx context.Context, key string) error {
	return p.store.Delete(ctx, p.prefix+key)
}

func (p *prefixed) List(ctx context.Context, prefix string) ([]Info, error) {
	infos, err := p.store.List(ctx, p.prefix+prefix)
	for i := range infos {
		infos[i].Key = strings.TrimPrefix(infos[i].Key, p.prefix)
	}
	return infos, err
}

// WithMetrics returns store with metrics of its calls by operation and outcome.
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
	case err == nil, errors.Is(err, ErrUnchanged):
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

// GetChanged implements ChangeReader.
func (m *measured) GetChanged(ctx context.Context, key, etag string) (object Object, err error) {
	end := m.begin("get")
	object, err = GetChanged(ctx, m.store, key, etag)
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
