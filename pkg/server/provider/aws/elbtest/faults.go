// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package elbtest

import "net/http"

// Fault is what some calls get instead of their response.
type Fault struct {
	// Action selects the calls. An empty one selects all.
	Action string
	// Skip is how many calls are as usual before, and Times how many have the fault, zero
	// for all.
	Skip, Times int
	// Before is true if the calls have no effect.
	Before bool
	// Status, Code and Message are the response. Without a Status the connection is lost.
	Status        int
	Code, Message string

	seen int
}

// Throttled returns a fault that throttles a number of calls.
func Throttled(times int) *Fault {
	return &Fault{Times: times, Before: true, Status: http.StatusBadRequest, Code: "Throttling", Message: "Rate exceeded"}
}

// SetFaults replaces all faults. The first one that selects a call counts.
func (s *Server) SetFaults(faults ...*Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = faults
}

// fault returns the fault for a call, nil if there is none.
func (s *Server) fault(name string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.faults {
		if one.Action != "" && one.Action != name || one.Times > 0 && one.seen >= one.Skip+one.Times {
			continue
		}
		one.seen++
		if one.seen <= one.Skip {
			return nil
		}
		return one
	}
	return nil
}

// apply responds as a fault says.
func (s *Server) apply(f *Fault, name string, w http.ResponseWriter) {
	if f.Status == 0 {
		panic(http.ErrAbortHandler)
	}
	s.respond(w, name, nil, &refusal{f.Status, f.Code, f.Message})
}
