// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestMain(m *testing.M) { os.Exit(crashes.Main(m)) }

func TestConformance(t *testing.T) {
	providertest.TestRemote(t, providertest.Config{
		Run:            synctest.Test,
		NewBackend:     newBackend,
		Type:           testType,
		OtherType:      largeType,
		Subnet:         "subnet",
		LimitedSubnet:  "two",
		RejectedSubnet: "full",
		QuietPeriod:    5 * time.Minute,
	})
}

// newBackend returns a project without machines.
func newBackend(t *testing.T) providertest.Backend {
	s := gcetest.New()
	// Of two launches at once, both have finished when a list shows one of them.
	s.OperationTime, s.BootTime = 100*time.Millisecond, 100*time.Millisecond
	s.StartInMemory(t)
	options := testOptions(s)
	b := cloudtest.NewBackendOf(t, func(shard provider.Shard) (*API, error) { return newAPI(options, shard, s.Transport()) }, func(shard provider.Shard) cloud.Options {
		return cloud.Options{ExpectedNode: expectedNode(shard)}
	})
	b.Existing, b.Remove = s.Machines, s.Remove
	return b
}
