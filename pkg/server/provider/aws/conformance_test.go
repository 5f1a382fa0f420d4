// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
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
	b := cloudtest.NewBackendOf(t, func(shard provider.Shard) (*API, error) { return newAPI(options, shard, s.Dial) }, func(shard provider.Shard) cloud.Options {
		return cloud.Options{ExpectedNode: expectedNode(shard), Market: market}
	})
	b.Existing, b.Remove = s.Existing, s.Terminate
	return b
}
