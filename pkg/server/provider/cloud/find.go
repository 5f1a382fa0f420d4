// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"
	"fmt"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

var _ provider.Finder = (*Provider)(nil)

// Find reads the machine of one instance from the cloud. The table stays as it is.
func (p *Provider) Find(ctx context.Context, id string) (instance.VM, bool, error) {
	m, found, err := p.find(ctx, id)
	if err != nil {
		return instance.VM{}, false, fmt.Errorf("find the machine of instance %s: %w", id, err)
	}
	if !found {
		return instance.VM{}, false, nil
	}
	return (&entry{id: id, group: m.Group, origin: m.Origin, machine: &m, listed: true}).vm(), true, nil
}

// find reads the machine of an instance.
func (p *Provider) find(ctx context.Context, id string) (m VM, found bool, err error) {
	var known VM
	p.mu.Lock()
	if e := p.table[id]; e != nil && e.machine != nil {
		known = *e.machine
	}
	p.mu.Unlock()
	finder, byProviderID := p.api.(KnownFinder)
	err = p.read(ctx, func(ctx context.Context) (err error) {
		if byProviderID && known.ProviderID != "" {
			m, found, err = finder.FindKnown(ctx, known)
			return err
		}
		m, found, err = p.api.Find(ctx, id)
		return err
	})
	return m, found, err
}
