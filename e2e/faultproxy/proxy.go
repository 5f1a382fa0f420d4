// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package faultproxy stands between one client and the API server, and does to
// the client's requests what a failing API server would do.
package faultproxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// Start serves at a free port of this machine until Close. Requests go to the API server of
// config, without the credentials of config.
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

// badGateway responds if the API server does not. It logs nothing, because the tests stop the API
// server on purpose.
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

// Rule selects requests, and the fault that they meet.
type Rule struct {
	// Verbs are RBAC verbs, such as list and watch. Empty means all.
	Verbs []string
	// Resource is plural, such as machinepools, or has the RBAC form of a subresource, such as
	// machinepools/status, which "machinepools" does not include. "" means all.
	Resource string
	// Except is a resource that an empty Resource does not include.
	Except string
	// Name is the name of the object. "" means all.
	Name string
	// After is how many of these requests are forwarded before.
	After int
	// Code is the HTTP status of the response. With zero there is no response, until
	// the client gives up or the fault is healed.
	Code int
}

// Fault is a rule in force.
type Fault struct {
	rule Rule
	// forwarded is how many requests the rule has applied to before the fault. Proxy.mu guards it.
	forwarded int
	met       atomic.Int64
	healed    chan struct{}
}

// Met returns to how many requests the fault was applied.
func (f *Fault) Met() int { return int(f.met.Load()) }

// Inject puts a rule in force for all requests that arrive from now on.
func (p *Proxy) Inject(rule Rule) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	fault := &Fault{rule: rule, healed: make(chan struct{})}
	p.faults = append(p.faults, fault)
	return fault
}

// Heal removes all faults. Requests that still have no response are aborted.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fault := range p.faults {
		close(fault.healed)
	}
	p.faults = nil
}

// faultFor returns the first fault for a request, or nil.
func (p *Proxy) faultFor(info *request.RequestInfo) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fault := range p.faults {
		switch {
		case !fault.rule.applies(info):
		case fault.forwarded < fault.rule.After:
			fault.forwarded++
		default:
			return fault
		}
	}
	return nil
}

func (r Rule) applies(info *request.RequestInfo) bool {
	resource := info.Resource
	if info.Subresource != "" {
		resource += "/" + info.Subresource
	}
	return (len(r.Verbs) == 0 || slices.Contains(r.Verbs, info.Verb)) &&
		(r.Resource == "" || r.Resource == resource) &&
		(r.Except == "" || r.Except != resource) &&
		(r.Name == "" || r.Name == info.Name)
}

func (f *Fault) serve(w http.ResponseWriter, r *http.Request) {
	f.met.Add(1)
	if f.rule.Code == 0 {
		select {
		case <-r.Context().Done():
		case <-f.healed:
		}
		panic(http.ErrAbortHandler)
	}
	status := apierrors.NewGenericServerResponse(f.rule.Code, r.Method, schema.GroupResource{}, "", "injected by a test", 0, true).Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.rule.Code)
	_ = json.NewEncoder(w).Encode(status)
}
