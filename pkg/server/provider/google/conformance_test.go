// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/machines"
	"nstance.dev/operator/pkg/server/provider/machines/machinestest"
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
	return &machinestest.Backend{
		Faults: machinestest.NewFaults(),
		New: func(shard provider.Shard, callContext provider.CallContextFunc, wrap func(machines.API) machines.API) provider.Provider {
			api, err := newAPI(options, shard, s.Transport())
			assert.NoError(t, err)
			return machines.New(wrap(api), machines.Options{CallContext: callContext, ExpectedNode: expectedNode(shard)})
		},
		Existing: s.Machines,
		Remove:   s.Remove,
	}
}
