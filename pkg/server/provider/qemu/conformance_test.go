// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestConformance(t *testing.T) {
	needPrograms(t)
	providertest.TestRemote(t, providertest.Config{
		// Machines need little of this machine, and most of the time is waiting.
		Run: func(t *testing.T, test func(*testing.T)) {
			t.Parallel()
			test(t)
		},
		NewBackend:     newBackend,
		Type:           testType,
		OtherType:      largeType,
		Subnet:         "subnet",
		LimitedSubnet:  "two",
		RejectedSubnet: "unplugged",
		QuietPeriod:    2 * time.Second,
	})
}

// newBackend returns a host without machines.
func newBackend(t *testing.T) providertest.Backend {
	options := testOptions(t, deafGuest)
	return &cloudtest.Backend{
		Faults: cloudtest.NewFaults(),
		New: func(shard provider.Shard, callContext provider.CallContextFunc, wrap func(cloud.API) cloud.API) provider.Provider {
			api := NewAPI(options, shard)
			api.limits.PollInterval, api.limits.IdleInterval = 100*time.Millisecond, 200*time.Millisecond
			return cloud.New(wrap(api), cloud.Options{CallContext: callContext, ExpectedNode: expectedNode(shard)})
		},
		Existing: func() []string {
			var ids []string
			for _, f := range allFolders(t, options.Dir) {
				ids = append(ids, f.id)
			}
			return ids
		},
		Remove: func(id string) {
			for _, f := range allFolders(t, options.Dir) {
				if f.id == id {
					destroy(t, f)
				}
			}
		},
	}
}
