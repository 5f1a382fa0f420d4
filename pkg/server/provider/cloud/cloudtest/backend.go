// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloudtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// Backend is a backend of the conformance suite, for any cloud.
type Backend struct {
	*Faults
	// New returns a provider that calls the cloud through wrap.
	New func(shard provider.Shard, callContext provider.CallContextFunc, wrap func(cloud.API) cloud.API) provider.Provider
	// Existing returns the ids of all instances, and Remove deletes one, without the
	// providers.
	Existing func() []string
	Remove   func(id string)
	// Stock sets whether there is capacity for a type in a market, if the cloud has markets.
	Stock func(typeName, market string, available bool)
}

var (
	_ providertest.RemoteBackend = (*Backend)(nil)
	_ providertest.MarketBackend = (*Backend)(nil)
)

// NewBackend returns the backend of a cloud in memory.
func NewBackend(c *Cloud) *Backend {
	return &Backend{
		Faults: NewFaults(),
		New: func(shard provider.Shard, callContext provider.CallContextFunc, wrap func(cloud.API) cloud.API) provider.Provider {
			return cloud.New(wrap(c.API(shard)), cloud.Options{CallContext: callContext})
		},
		Existing: c.Existing,
		Remove:   func(id string) { c.Vanish(id) },
	}
}

// NewBackendOf returns the backend of a cloud, without Existing and Remove. newAPI returns
// the calls for the VMs of a shard. options has the other options of its providers, without
// CallContext.
func NewBackendOf[A cloud.API](t *testing.T, newAPI func(provider.Shard) (A, error), options func(provider.Shard) cloud.Options) *Backend {
	return &Backend{
		Faults: NewFaults(),
		New: func(shard provider.Shard, callContext provider.CallContextFunc, wrap func(cloud.API) cloud.API) provider.Provider {
			api, err := newAPI(shard)
			assert.NoError(t, err)
			o := options(shard)
			o.CallContext = callContext
			return cloud.New(wrap(api), o)
		},
	}
}

// NewProvider returns a provider that does not run yet.
func (b *Backend) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) provider.Provider {
	return b.New(shard, callContext, b.Wrap)
}

// Instances returns the ids of all instances that exist.
func (b *Backend) Instances() []string { return b.Existing() }

// Delete deletes an instance, like another client.
func (b *Backend) Delete(id string) { b.Remove(id) }

// SetStock sets whether there is capacity for a type in a market.
func (b *Backend) SetStock(t provider.InstanceType, market string, available bool) provider.InstanceType {
	b.Stock(t.Name, market, available)
	return t
}

// FailCreate makes the next launches fail.
func (b *Backend) FailCreate(times int) { b.Fail(Launch, times) }

// FailDelete makes the next terminations fail.
func (b *Backend) FailDelete(times int) { b.Fail(Terminate, times) }

// FailLists makes the next lists fail.
func (b *Backend) FailLists(times int) { b.Fail(List, times) }

// LoseResponse makes the next launch fail after the VM was created.
func (b *Backend) LoseResponse() { b.LoseResponses(Launch, 1) }

// Calls returns how many launches and terminations there were since the last time.
func (b *Backend) Calls() (creates, deletes int) {
	return b.Count(Launch), b.Count(Terminate)
}

// NewRequest returns a request for the machine of a new instance.
func NewRequest(t *testing.T, instanceType provider.InstanceType, subnet string) cloud.Request {
	t.Helper()
	id := providertest.NewID(t)
	return cloud.Request{Token: id, Spec: provider.Spec{
		ID: id, Group: workers, Kind: "knd", Template: "worker", Type: instanceType, Subnet: subnet,
		CreatedAt: time.Now().UTC(), Userdata: []byte("userdata of " + id),
	}}
}

// ListByID lists the VMs by instance id. The test fails if an instance has two VMs.
func ListByID(t *testing.T, api cloud.API) map[string]cloud.VM {
	t.Helper()
	list, err := api.List(t.Context())
	require.NoError(t, err)
	byID := map[string]cloud.VM{}
	for _, vm := range list {
		byID[vm.ID] = vm
	}
	assert.Len(t, list, len(byID), "machines, each once")
	return byID
}
