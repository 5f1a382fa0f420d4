// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package wire converts between the domain types of package shard and the
// messages of the wire contract. Strings, slices and maps are shared, not copied.
package wire

import (
	nstancev1 "nstance.dev/operator/proto/nstance/v1"

	"nstance.dev/operator/pkg/shard"
)

// Group is the domain form of status. A nil status is the zero Group.
func Group(status *nstancev1.GroupStatus) shard.Group {
	return shard.Group{
		Key:          status.GetKey(),
		Tenant:       status.GetTenant(),
		Template:     status.GetTemplate(),
		Size:         status.GetSize(),
		InstanceType: status.GetInstanceType(),
		Subnets:      status.GetSubnets(),
		Vars:         status.GetVars(),
		Static:       status.GetIsStatic(),
		ETag:         status.GetEtag(),
		ActualSize:   status.GetActualSize(),
		ProviderIDs:  status.GetProviderIds(),
		Deleting:     status.GetDeleting(),
	}
}

// Config is the wire form of config. Args stays empty: the wire contract has
// servers drop it from UpsertGroup.
func Config(config shard.GroupConfig) *nstancev1.GroupConfig {
	return &nstancev1.GroupConfig{
		Template:     config.Template,
		Size:         config.Size,
		InstanceType: config.InstanceType,
		Subnets:      config.Subnets,
		Vars:         config.Vars,
	}
}
