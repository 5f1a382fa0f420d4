// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package wire converts between the domain types of package shard and the
// messages of the wire contract. Strings, slices and maps are shared, not copied.
package wire

import (
	"slices"
	"strings"

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

		ListsInstances: status.GetInstances() != nil,
		Instances:      managed(status.GetInstances().GetInstances()),
		RemoveFirst:    status.GetRemoveFirst(),
		Node:           node(status.GetNode()),
	}
}

// managed are the instances by id, in whichever order they are told: one that is
// looked for where it is not would seem to be gone.
func managed(told []*nstancev1.ManagedInstance) []shard.Instance {
	if len(told) == 0 {
		return nil
	}
	instances := make([]shard.Instance, len(told))
	for n, i := range told {
		instances[n] = shard.Instance{
			ID:         i.GetId(),
			State:      shard.InstanceState(i.GetStatus()),
			ProviderID: i.GetProviderId(),
		}
	}
	slices.SortFunc(instances, func(a, b shard.Instance) int { return strings.Compare(a.ID, b.ID) })
	return instances
}

func node(told *nstancev1.NodeShape) *shard.NodeShape {
	if told == nil {
		return nil
	}
	shape := &shard.NodeShape{
		Architecture:    told.GetArchitecture(),
		OperatingSystem: told.GetOperatingSystem(),
		Capacity:        told.GetCapacity(),
		Labels:          told.GetLabels(),
	}
	for _, taint := range told.GetTaints() {
		shape.Taints = append(shape.Taints, shard.Taint{Key: taint.GetKey(), Value: taint.GetValue(), Effect: taint.GetEffect()})
	}
	return shape
}

// Upsert is the request that gives the group with this key the configuration.
// Args stays empty: the wire contract has servers drop it from UpsertGroup.
func Upsert(key string, config shard.GroupConfig) *nstancev1.UpsertGroupRequest {
	return &nstancev1.UpsertGroupRequest{
		Key: key,
		Config: &nstancev1.GroupConfig{
			Template:     config.Template,
			Size:         config.Size,
			InstanceType: config.InstanceType,
			Subnets:      config.Subnets,
			Vars:         config.Vars,
		},
		RemoveFirst: config.RemoveFirst,
	}
}
