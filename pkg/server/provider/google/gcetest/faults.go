// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"fmt"
	"net/http"
	"strings"
)

// Fault is what some calls get instead of their response.
type Fault struct {
	// Method is the id of a method or its end, such as "instances.list". Empty selects all.
	Method string
	// Times is how many calls, zero for all.
	Times int
	// Before is true if the calls have no effect.
	Before bool
	// Status, Reason and Message are the response. With StatusOK it is Body. Without a Status
	// the connection is lost.
	Status          int
	Reason, Message string
	Body            any
	// Hang is true if there is no response until the client gives up.
	Hang bool

	seen  int
	ended chan struct{}
}

// SetFaults replaces all faults. The first one that selects a call counts.
func (s *Server) SetFaults(faults ...*Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, old := range s.faults {
		close(old.ended)
	}
	for _, one := range faults {
		one.ended = make(chan struct{})
	}
	s.faults = faults
}

// fault returns the fault for a call, nil if there is none.
func (s *Server) fault(method string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.faults {
		if !strings.HasSuffix(method, one.Method) || one.Times > 0 && one.seen >= one.Times {
			continue
		}
		one.seen++
		return one
	}
	return nil
}

// Seen returns how many calls have met the fault.
func (s *Server) Seen(f *Fault) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.seen
}

// apply responds as the fault defines.
func (f *Fault) apply(s *Server, w http.ResponseWriter, r *request) {
	switch {
	case f.Hang:
		select {
		case <-r.Context().Done():
		case <-f.ended:
		}
		panic(http.ErrAbortHandler)
	case f.Status == 0:
		panic(http.ErrAbortHandler)
	case f.Status == http.StatusOK:
		s.respond(w, nil, f.Body, nil)
	default:
		s.respond(w, nil, nil, &failure{f.Status, f.Reason, f.Message})
	}
}

// failure is a response that is no success.
type failure struct {
	status          int
	reason, message string
}

// Error returns the message.
func (f *failure) Error() string { return f.message }

func invalid(format string, values ...any) error {
	return &failure{http.StatusBadRequest, "invalid", fmt.Sprintf(format, values...)}
}

func notFound(resource string) error {
	return &failure{http.StatusNotFound, "notFound", fmt.Sprintf("The resource '%s' was not found", resource)}
}
