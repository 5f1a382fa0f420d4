// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
)

// tap passes the calls of a server on to a service, and lets a killer kill the server before
// or after one.
type tap struct {
	killer *killer
	// name returns what a call does, empty for one at which the server is not killed.
	name func(*http.Request) string
	// done is called after each such call. It may be nil.
	done func(name string, r *http.Request, code int)

	service http.Handler
}

// wrap returns the tap of a service.
func (p *tap) wrap(service http.Handler) http.Handler {
	p.service = service
	return p
}

// ServeHTTP passes one call on.
func (p *tap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := p.name(r)
	if name == "" {
		p.service.ServeHTTP(w, r)
		return
	}
	point := p.killer.reached(name)
	if point == before {
		p.killer.strike()
		panic(http.ErrAbortHandler)
	}
	// A call that has reached the service has its effect, whether or not the server lives.
	response := httptest.NewRecorder()
	p.service.ServeHTTP(response, r.WithContext(context.WithoutCancel(r.Context())))
	if p.done != nil {
		p.done(name, r, response.Code)
	}
	if point == after {
		p.killer.strike()
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), response.Header())
	w.WriteHeader(response.Code)
	_, _ = w.Write(response.Body.Bytes()) // the server may have been killed
}

// when is the part of a call at which the server is killed.
type when string

const (
	never  when = ""
	before when = "before"
	after  when = "after"
)

// killer kills a server at a step.
type killer struct {
	kill func()

	// mu guards the fields below.
	mu sync.Mutex
	// armed is where the server is killed next, never if it is not to be, and fired is closed
	// when that was done.
	armed when
	match func(name string) bool
	fired chan struct{}
	// steps counts the steps by name.
	steps map[string]int
}

// arm makes the server be killed at the next step that match returns true for. The returned
// channel is closed when it was.
func (k *killer) arm(at when, match func(name string) bool) (fired <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed, k.match, k.fired = at, match, make(chan struct{})
	return k.fired
}

// disarm reports whether the server has not been killed.
func (k *killer) disarm() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	armed := k.armed != never
	k.armed = never
	return armed
}

// reached counts a step and returns when to kill the server.
func (k *killer) reached(name string) when {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.steps == nil {
		k.steps = map[string]int{}
	}
	k.steps[name]++
	if k.armed == never || !k.match(name) {
		return never
	}
	at := k.armed
	k.armed = never
	return at
}

// counts returns how often each step was made.
func (k *killer) counts() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.steps)
}

// strike kills the server.
func (k *killer) strike() {
	k.kill()
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.fired)
}
