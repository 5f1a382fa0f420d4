// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// BalancerOptions add load balancers to the options of another provider.
type BalancerOptions struct {
	providertest.BalancerOptions
	Balancers *providertest.Balancers
}

// RunsAgent returns what the other provider does.
func (o BalancerOptions) RunsAgent() bool { return provider.RunsAgent(o.Options) }

// NewProvider returns the other provider with the load balancers.
func (o BalancerOptions) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	p, err := o.Options.NewProvider(shard, callContext)
	return balancerProvider{p, o.Balancers}, err
}

type balancerProvider struct {
	provider.Provider
	*providertest.Balancers
}
