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
	// requestTimeout is the timeout for reading a request, and for writing its
	// response. The timeout of the API server is shorter.
	requestTimeout = 10 * time.Second
	// idleTimeout is how long a connection without requests is kept.
	idleTimeout = 2 * time.Minute
	// stopTimeout is the timeout for requests in flight when the server stops.
	stopTimeout = 5 * time.Second
)

// GetCertificate returns the certificate for a handshake, like the field of
// tls.Config.
type GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// Serve serves handler over TLS at address until ctx is done. It returns when the
// address is bound. There need not be a certificate yet: each handshake calls
// certificate.
func Serve(ctx context.Context, address string, handler http.Handler, certificate GetCertificate) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
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
		// Requests get the logger of ctx, but are not cancelled with it.
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	context.AfterFunc(ctx, func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(stopCtx) != nil {
			_ = server.Close()
		}
	})
	go func() {
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "HTTPS server stopped", "address", listener.Addr())
		}
	}()
}
