// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

// OptionsOf returns the options for a cluster that serves, with one subnet.
func OptionsOf(s *pvetest.Server) *Options {
	o := testOptions(s)
	o.Subnets = map[string]Subnet{"subnet": o.Subnets["subnet"]}
	return o
}

// NewProviderIn returns the provider of a cluster that serves in memory.
func (o *Options) NewProviderIn(s *pvetest.Server, shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	api, err := newAPI(o, shard, s.Dial)
	if err != nil {
		return nil, err
	}
	return cloud.New(api, cloud.Options{CallContext: callContext, ExpectedNode: expectedNode(shard)}), nil
}
