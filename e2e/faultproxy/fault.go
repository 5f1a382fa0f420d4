// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faultproxy

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Rule is what is done to which requests.
type Rule struct {
	// Verbs are those of RBAC, such as list and watch. None means all.
	Verbs []string
	// Resource is plural, such as machinepools, or of RBAC's form for a subresource,
	// such as machinepools/status, which the former does not mean. "" means all.
	Resource string
	// Except is a resource that an empty Resource does not mean.
	Except string
	// Name is that of one object. "" means all.
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
