// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/machines"
	"nstance.dev/operator/pkg/server/provider/machines/machinestest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestConformance(t *testing.T) {
	providertest.TestRemote(t, providertest.Config{
		Run:            synctest.Test,
		NewBackend:     newBackend,
		Type:           testType,
		OtherType:      otherType,
		Subnet:         largeSubnet,
		LimitedSubnet:  smallSubnet,
		RejectedSubnet: rejectedSubnet,
		QuietPeriod:    5 * time.Minute,
	})
}

// newBackend returns a region without instances.
func newBackend(t *testing.T) providertest.Backend {
	s := newRegion()
	s.StartInMemory(t)
	options := testOptions(s)
	return &machinestest.Backend{
		Faults: machinestest.NewFaults(),
		New: func(shard provider.Shard, callContext provider.CallContextFunc, wrap func(machines.API) machines.API) provider.Provider {
			api, err := newAPI(options, shard, s.Dial)
			assert.NoError(t, err)
			return machines.New(wrap(api), machines.Options{CallContext: callContext, ExpectedNode: expectedNode(shard), Market: market})
		},
		Existing: s.Existing,
		Remove:   s.Terminate,
	}
}
