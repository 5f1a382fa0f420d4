// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines_test

import (
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/machines/machinestest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestConformance(t *testing.T) {
	providertest.TestRemote(t, providertest.Config{
		Run: synctest.Test,
		NewBackend: func(*testing.T) providertest.Backend {
			c := machinestest.NewCloud()
			c.Room["small"] = 2
			return machinestest.NewBackend(c)
		},
		Type:           provider.InstanceType{Name: "medium", Arch: provider.ArchAMD64},
		OtherType:      provider.InstanceType{Name: "large", Arch: provider.ArchAMD64},
		Subnet:         "subnet",
		LimitedSubnet:  "small",
		RejectedSubnet: machinestest.RejectedSubnet,
		QuietPeriod:    10 * time.Minute,
	})
}
