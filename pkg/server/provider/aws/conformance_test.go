// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"testing"
	"testing/synctest"
	"time"

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
	b := machinestest.NewBackendOf(t, func(shard provider.Shard) (*API, error) { return newAPI(options, shard, s.Dial) }, func(shard provider.Shard) machines.Options {
		return machines.Options{ExpectedNode: expectedNode(shard), Market: market}
	})
	b.Existing, b.Remove = s.Existing, s.Terminate
	return b
}
