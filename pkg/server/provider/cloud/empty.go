// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import "time"

// showsKnown reports whether a list shows a machine that was known before, or before lists began
// to show none. mu must be locked.
func (p *Provider) showsKnown(machines map[string]VM) bool {
	for id := range machines {
		if e := p.table[id]; e != nil && e.listed && (p.emptySince.IsZero() || e.launched.Before(p.emptySince)) {
			return true
		}
	}
	return false
}

// isEmpty reports whether a list that has left out machines, and has shown none that was known,
// proves nothing yet. mu must be locked.
func (p *Provider) isEmpty(shown, absent bool) bool {
	if shown || !absent {
		p.emptySince = time.Time{}
		return false
	}
	if p.emptySince.IsZero() {
		p.emptySince = time.Now()
	}
	return time.Since(p.emptySince) < p.limits.EmptyDelay
}

// restartEmptyDelay begins the time anew in which lists have shown nothing, because one has
// failed.
func (p *Provider) restartEmptyDelay() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.emptySince.IsZero() {
		p.emptySince = time.Now()
	}
}
