// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package faultproxy stands between one client and the API server, and does to
// the client's requests what a failing API server would do.
package faultproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
)

// Proxy forwards requests unchanged, the client's bearer token included, except those
// that a fault applies to.
type Proxy struct {
	// URL is where clients reach the proxy.
	URL string

	server  *http.Server
	forward http.Handler
	infos   request.RequestInfoResolver

	mu      sync.Mutex
	faults  []*Fault
	watches map[*watching]struct{}
}

// watching is a watch that is being forwarded.
type watching struct {
	resource string
	cut      context.CancelFunc
}

// Start serves at a free port of this machine until Close. The API server is
// that of config, whose own credentials are not used.
func Start(config *rest.Config, certificate tls.Certificate) (*Proxy, error) {
	upstream, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("starting the proxy: %w", err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(config))
	if err != nil {
		return nil, fmt.Errorf("starting the proxy: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting the proxy: %w", err)
	}
	p := &Proxy{
		URL: "https://" + listener.Addr().String(),
		forward: &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
			Transport:     transport,
			FlushInterval: -1, // a watch's events must not wait
			ErrorHandler:  badGateway,
			ErrorLog:      log.New(io.Discard, "", 0),
		},
		infos: &request.RequestInfoFactory{
			APIPrefixes:          sets.NewString("api", "apis"),
			GrouplessAPIPrefixes: sets.NewString("api"),
		},
		watches: map[*watching]struct{}{},
	}
	p.server = &http.Server{
		Handler:           http.HandlerFunc(p.serve),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() { _ = p.server.ServeTLS(listener, "", "") }()
	return p, nil
}

// badGateway answers when the API server itself does not. It logs nothing, because the
// tests make that happen.
func badGateway(w http.ResponseWriter, _ *http.Request, err error) {
	if errors.Is(err, context.Canceled) {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusBadGateway)
}

// Close aborts all requests.
func (p *Proxy) Close() error {
	p.Heal()
	return p.server.Close()
}

// CutWatches breaks the connections of the watches of a resource that are open
// now, of every resource when it is "", and returns how many there were.
func (p *Proxy) CutWatches(resource string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := 0
	for w := range p.watches {
		if resource == "" || resource == w.resource {
			w.cut()
			count++
		}
	}
	return count
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	info, err := p.infos.NewRequestInfo(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if fault := p.faultFor(info); fault != nil {
		fault.serve(w, r)
		return
	}
	if info.Verb != "watch" {
		p.forward.ServeHTTP(w, r)
		return
	}
	ctx, cut := context.WithCancel(r.Context())
	defer cut()
	defer p.add(&watching{info.Resource, cut})()
	p.forward.ServeHTTP(w, r.WithContext(ctx))
	if ctx.Err() != nil {
		// The API server may have completed the response in the moment it was cut, which
		// the client must not see as a regular end.
		panic(http.ErrAbortHandler)
	}
}

func (p *Proxy) add(w *watching) (remove func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[w] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watches, w)
	}
}
