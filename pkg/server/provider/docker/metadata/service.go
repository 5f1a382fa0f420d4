// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package metadata serves each instance its own metadata, as version 2 of the instance
// metadata service of AWS does (docs/providers.md#metadata-service). An instance is
// recognized by the address that it calls from.
package metadata

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// ErrUnknown is the error of an address that belongs to no instance, or to more than one.
var ErrUnknown = errors.New("the address belongs to no instance")

// Instance is one machine and what it may know about itself.
type Instance struct {
	// Machine identifies the machine: two machines that have had the same address differ in
	// it.
	Machine string
	// ID is that of the instance.
	ID string
	// Values are the entries of meta-data that do not change, by path.
	Values map[string]string
}

// Notice announces a termination.
type Notice struct {
	// Action is one of AWS: terminate, stop or hibernate.
	Action string
	// Time is when it happens.
	Time time.Time
}

// Source has the instances. It is used concurrently.
type Source interface {
	// Instance returns the one that has an address at the time of the call. The error
	// wraps ErrUnknown if that is not exactly one.
	Instance(ctx context.Context, address netip.Addr) (*Instance, error)
	// Userdata returns that of an instance, nil if there is none.
	Userdata(ctx context.Context, i *Instance) ([]byte, error)
	// Notice returns that of an instance, nil if there is none.
	Notice(i *Instance) (*Notice, error)
}

// service is the handler of all requests.
type service struct {
	source Source
	tokens tokens
}

// connection is the machine that a connection belongs to: an address may pass to another
// machine while a connection is open.
type connection struct {
	mu      sync.Mutex
	machine string
}

type connectionKey struct{}

// belongsTo reports whether the connection is one of a machine. The first request decides.
func (c *connection) belongsTo(machine string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.machine == "" {
		c.machine = machine
	}
	return c.machine == machine
}

// ServeHTTP implements http.Handler.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	logger := klog.FromContext(r.Context())
	// A proxy passes on requests of others.
	if len(r.Header.Values("X-Forwarded-For")) > 0 {
		refuse(w, http.StatusForbidden)
		return
	}
	address, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		refuse(w, http.StatusForbidden)
		return
	}
	i, err := s.source.Instance(r.Context(), address.Addr().Unmap())
	switch {
	case errors.Is(err, ErrUnknown):
		logger.V(2).Info("Refused a request for metadata of an address that belongs to no instance", "address", address.Addr())
		refuse(w, http.StatusForbidden)
		return
	case err != nil:
		logger.Error(err, "Finding the instance of a request for metadata failed", "address", address.Addr())
		refuse(w, http.StatusServiceUnavailable)
		return
	}
	if c, ok := r.Context().Value(connectionKey{}).(*connection); !ok || !c.belongsTo(i.Machine) {
		refuse(w, http.StatusForbidden)
		return
	}
	if r.URL.Path == tokenPath {
		s.serveToken(w, r, i)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed)
		return
	}
	if !s.tokens.valid(r.Header.Get(tokenHeader), i.Machine, time.Now()) {
		refuse(w, http.StatusUnauthorized)
		return
	}
	content, found, err := s.content(r.Context(), i, r.URL.Path)
	switch {
	case err != nil:
		logger.Error(err, "Reading metadata failed", "instance", i.ID, "path", r.URL.Path)
		refuse(w, http.StatusInternalServerError)
	case !found:
		http.Error(w, "404 - Not Found", http.StatusNotFound)
	default:
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(content)
	}
}

// refuse responds with nothing but a status, and closes the connection.
func refuse(w http.ResponseWriter, code int) {
	w.Header().Set("Connection", "close")
	w.WriteHeader(code)
}

// Limits of clients: an instance needs one connection.
const (
	maxHeaderBytes = 16 << 10
	requestTimeout = 10 * time.Second
	idleTimeout    = time.Minute
)

// Serve serves the instances of a source until ctx is done, and closes the listener.
func Serve(ctx context.Context, listener net.Listener, source Source) error {
	server := &http.Server{
		Handler:           &service{source: source, tokens: newTokens()},
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: requestTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      2 * requestTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, &connection{})
		},
		// What clients do wrong is not logged.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}
