// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package provision creates the specs for a provider from a group and the record of
// an instance, with all templates rendered.
package provision

import (
	"context"
	"fmt"
	"net/http"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/registration"
)

// Nonces signs the nonces with which agents register. registration.NonceSigner implements it.
type Nonces interface {
	Agent(registration.AgentNonce) (string, error)
}

// Options configure a Provisioner. Every field is mandatory.
type Options struct {
	// Config returns the configuration in force.
	Config func() *config.Config
	// Addresses are the addresses at which agents reach this shard.
	Addresses config.Addresses
	// AuthorityPEM returns the certificates that agents trust, PEM. Default: none.
	AuthorityPEM func() []byte
	Nonces       Nonces
}

// Provisioner creates the specs of one shard. It is safe for concurrent use.
type Provisioner struct {
	Options
	client *http.Client
	pages  pages
}

// New returns a Provisioner.
func New(o Options) *Provisioner {
	return &Provisioner{Options: o, client: &http.Client{}}
}

// Spec returns the spec for an instance of group in a subnet. Each call signs a new
// nonce and requests the userdata again. The error contains neither the nonce nor
// userdata.
func (p *Provisioner) Spec(ctx context.Context, group *groups.Group, record *instance.Record, subnet string) (provider.Spec, error) {
	spec, err := p.spec(ctx, group, record, subnet)
	if err != nil {
		return provider.Spec{}, fmt.Errorf("prepare instance %s of group %s: %w", record.ID, record.Key(), err)
	}
	return spec, nil
}

func (p *Provisioner) spec(ctx context.Context, group *groups.Group, record *instance.Record, subnet string) (provider.Spec, error) {
	c := p.Config()
	group, err := Effective(c, group, record)
	if err != nil {
		return provider.Spec{}, err
	}
	facts := p.facts(c, group, record)
	args, err := renderArgs(group.Args, facts)
	if err != nil {
		return provider.Spec{}, err
	}
	facts.Instance.Market = provider.MarketOf(c.Shard.Infra.Options, args)
	userdata, err := p.userdata(ctx, c, group, record, facts)
	if err != nil {
		return provider.Spec{}, err
	}
	return provider.Spec{
		ID:        record.ID,
		Group:     record.Key(),
		Origin:    record.Origin(),
		Template:  group.Template,
		Kind:      group.Kind,
		CreatedAt: record.CreatedAt,
		Type:      group.Type,
		Subnet:    subnet,
		Args:      args,
		Userdata:  userdata,
	}, nil
}
