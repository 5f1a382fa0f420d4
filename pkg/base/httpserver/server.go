// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package httpserver serves probes, metrics and short queries to clients without a certificate.
// It limits the number of their connections, and how long each of them takes.
package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"nstance.dev/operator/pkg/base/connlimit"
)

// Limits of clients (docs/server-reference.md#limits). Without a limit of connections, clients
// without any credentials could take all file descriptors and the memory of a process.
const (
	// maxConnections is the maximum number of connections. Further connections wait.
	maxConnections = 512
	// maxPerAddress is the maximum number of connections of an address. Further connections are
	// closed. Probes, Prometheus and a peer have one connection each.
	maxPerAddress = 32
	// maxHeaders is the maximum size of the headers of a request, in bytes.
	maxHeaders = 16 << 10
	// readTimeout is how long a client may take for its handshake, and for a request.
	readTimeout = 5 * time.Second
	// writeTimeout is how long a response may take. Prometheus waits 10 s by default
	// (https://prometheus.io/docs/prometheus/latest/configuration/configuration/).
	writeTimeout = 30 * time.Second
	// idleTimeout is how long a connection without requests is kept.
	idleTimeout = time.Minute
)

// Limit limits the connections that a listener accepts, in all and of one address.
func Limit(l net.Listener) net.Listener {
	return connlimit.Total(connlimit.PerAddress(l, maxPerAddress), maxConnections)
}

// Serve serves handler until ctx is done, and closes the listener. It does not wait for the end of
// requests, because probes and scrapes are repeated. With a config it serves TLS.
func Serve(ctx context.Context, listener net.Listener, config *tls.Config, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		MaxHeaderBytes:    maxHeaders,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	limited := Limit(listener)
	serve := func() error { return server.Serve(limited) }
	if config != nil {
		serve = func() error { return server.ServeTLS(limited, "", "") }
	}
	if err := serve(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP at %s: %w", listener.Addr(), err)
	}
	return nil
}
