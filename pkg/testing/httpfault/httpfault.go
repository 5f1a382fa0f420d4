// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package httpfault makes chosen requests to an emulator of an HTTP API fail: with an error,
// without a response, or with a response that is lost after the request had its effect.
package httpfault

import (
	"net/http"
	"sync"
)

// Fault replaces the response to some requests. The emulator decides which requests match,
// and in which form it sends Code, Message and Body.
type Fault struct {
	// Call selects requests by the name of the call, and Verb by the HTTP method. Empty values
	// select all requests. Writes selects only requests that change something.
	Verb, Call string
	Writes     bool
	// Skip is the number of matching requests that are served normally first.
	Skip int
	// Times is the number of requests that fail, 0 for all.
	Times int
	// Before is true if the request fails before it has an effect.
	Before bool
	// Status is the HTTP status of the response, 0 to close the connection without a response.
	// With http.StatusOK the response is Body, and otherwise an error with Code and Message.
	Status        int
	Code, Message string
	Body          any
	// Hang is true if no response comes until the client gives up or SetFaults is called.
	Hang bool

	seen  int
	ended chan struct{}
}

// Faults are the faults of an emulator, which embeds them. The zero value has no faults.
type Faults struct {
	mu     sync.Mutex
	faults []*Fault
}

// SetFaults replaces all faults. A request gets the first fault that matches it.
func (f *Faults) SetFaults(faults ...*Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, old := range f.faults {
		close(old.ended)
	}
	for _, fault := range faults {
		fault.ended = make(chan struct{})
	}
	f.faults = faults
}

// Seen returns how many requests a fault has matched.
func (f *Faults) Seen(fault *Fault) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fault.seen
}

// Inject calls handle, unless the request gets a fault that must have no effect. It returns
// the fault whose response the emulator has to send, or nil if the response of handle counts.
func (f *Faults) Inject(r *http.Request, matches func(*Fault) bool, handle func()) *Fault {
	fault := f.next(matches)
	if fault == nil || !fault.Before {
		handle()
	}
	if fault == nil {
		return nil
	}
	if fault.Hang {
		select {
		case <-r.Context().Done():
		case <-fault.ended:
		}
	}
	if fault.Hang || fault.Status == 0 {
		panic(http.ErrAbortHandler)
	}
	return fault
}

// next returns the fault for a request, or nil.
func (f *Faults) next(matches func(*Fault) bool) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range f.faults {
		if !matches(fault) || fault.Times > 0 && fault.seen >= fault.Skip+fault.Times {
			continue
		}
		fault.seen++
		if fault.seen <= fault.Skip {
			return nil
		}
		return fault
	}
	return nil
}
