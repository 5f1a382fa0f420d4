// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
)

func TestMain(m *testing.M) {
	os.Setenv(tokenEnv, pvetest.Token)
	os.Exit(crashes.Main(m))
}

func isInProgress(err error) bool { return errors.Is(err, cloud.ErrInProgress) }

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

// newBackend returns a cluster without machines.
func newBackend(t *testing.T) providertest.Backend {
	s := newCluster()
	s.StartInMemory(t)
	// Of two launches at once, both have finished when a list shows one of them.
	s.CloneTime, s.TaskTime = 100*time.Millisecond, 100*time.Millisecond
	options := testOptions(s)
	b := cloudtest.NewBackendOf(t, func(shard provider.Shard) (*API, error) { return newAPI(options, shard, s.Dial) }, func(shard provider.Shard) cloud.Options {
		return cloud.Options{ExpectedNode: expectedNode(shard)}
	})
	b.Existing = func() []string { return started(s) }
	b.Remove = func(id string) {
		for _, vmid := range s.VMs(id) {
			s.Remove(vmid)
		}
	}
	return b
}
