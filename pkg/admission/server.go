// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

const (
	// requestTimeout is how long a request may take to arrive, and its answer to
	// leave. The API server has long given up then.
	requestTimeout = 10 * time.Second
	// idleTimeout is how long a connection is kept that nothing is asked on.
	idleTimeout = 2 * time.Minute
	// stopTimeout is how long requests that have arrived are given when the server
	// stops.
	stopTimeout = 5 * time.Second
)

// GetCertificate finds the certificate for a handshake, as tls.Config wants it.
type GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// Serve serves handler over TLS at address until ctx ends. It returns once the
// address is bound, whether there is a certificate yet or not: each handshake
// asks for the one in force.
func Serve(ctx context.Context, address string, handler http.Handler, certificate GetCertificate) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for admission reviews on %s: %w", address, err)
	}
	serve(ctx, listener, handler, certificate)
	return nil
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler, certificate GetCertificate) {
	server := &http.Server{
		Handler:           handler,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: certificate},
		ReadTimeout:       requestTimeout,
		ReadHeaderTimeout: requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       idleTimeout,
		// The logger travels with the context; its end must not cut off requests.
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	context.AfterFunc(ctx, func() {
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(patience) != nil {
			_ = server.Close()
		}
	})
	go func() {
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "Admission server ended", "address", listener.Addr())
		}
	}()
}
