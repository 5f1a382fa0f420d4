// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestConformance(t *testing.T) {
	providertest.TestRemote(t, providertest.Config{
		Run: synctest.Test,
		NewBackend: func(*testing.T) providertest.Backend {
			c := cloudtest.NewCloud()
			c.Room["small"] = 2
			return cloudtest.NewBackend(c)
		},
		Type:           provider.InstanceType{Name: "medium", Arch: provider.ArchAMD64},
		OtherType:      provider.InstanceType{Name: "large", Arch: provider.ArchAMD64},
		Subnet:         "subnet",
		LimitedSubnet:  "small",
		RejectedSubnet: cloudtest.RejectedSubnet,
		QuietPeriod:    10 * time.Minute,
	})
}
