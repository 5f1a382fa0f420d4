// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"net/http"
	"time"
)

// Fault is what some calls get instead of their response.
type Fault struct {
	// Action selects the calls. An empty one selects all, or with Writes those that change
	// something.
	Action string
	Writes bool
	// Skip is how many calls are as usual before.
	Skip int
	// Times is how many calls, zero for all.
	Times int
	// Before is true if the calls have no effect.
	Before bool
	// Status, Code and Message are the response, which is empty if the status is that of a
	// success. Without a Status the connection is lost.
	Status        int
	Code, Message string
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
func (s *Server) fault(name string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.faults {
		if one.Action != "" && one.Action != name || one.Writes && !actions[name].write || one.Times > 0 && one.seen >= one.Skip+one.Times {
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
func (s *Server) apply(f *Fault, name string, w http.ResponseWriter, r *http.Request) {
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
		s.respond(w, name, nil, nil)
	case f.Code == "":
		http.Error(w, "the service is unavailable", f.Status)
	default:
		s.respond(w, name, nil, &refusal{status: f.Status, code: f.Code, message: f.Message})
	}
}

// Throttle refuses all calls for a time.
func (s *Server) Throttle(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.throttled = time.Now().Add(d)
}

// DelayVisibility hides instances for a time after their launch: they are not found, and
// cannot be terminated.
func (s *Server) DelayVisibility(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visibility = d
}

// SetFull makes a zone have no machine of a type of a market, "on-demand" or "spot".
func (s *Server) SetFull(typeName, zone, market string, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full[typeName+"/"+zone+"/"+market] = full
}

// SetQuota limits the number of instances of a market that are not terminated. A negative
// number is no limit.
func (s *Server) SetQuota(market string, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quotas[market] = count
	if count < 0 {
		delete(s.quotas, market)
	}
}

// failure is why an instance is terminated before it runs.
type failure struct{ code, message string }

// FailLaunches makes instances that are launched next terminate before they run.
func (s *Server) FailLaunches(times int, code, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = nil
	for range times {
		s.failures = append(s.failures, failure{code, message})
	}
}
