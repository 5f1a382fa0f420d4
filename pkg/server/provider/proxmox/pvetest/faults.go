// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pvetest

import (
	"net/http"
	"strings"
)

// Fault is what some calls get instead of their response.
type Fault struct {
	// Verb and Suffix select the calls by method and the end of the path. Empty ones select
	// all.
	Verb, Suffix string
	// Times is how many calls, zero for all.
	Times int
	// Before is true if the calls have no effect.
	Before bool
	// Status and Message are the response, with an empty list as the data if it is a success.
	// Without a Status the connection is lost.
	Status  int
	Message string
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
func (s *Server) fault(r *http.Request) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.faults {
		if one.Verb != "" && one.Verb != r.Method || !strings.HasSuffix(r.URL.EscapedPath(), one.Suffix) || one.Times > 0 && one.seen >= one.Times {
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

// apply responds as the fault says.
func (f *Fault) apply(w http.ResponseWriter, r *http.Request) {
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
		respond(w, []any{}, nil)
	default:
		respond(w, nil, &failure{status: f.Status, message: f.Message})
	}
}
