// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package wire converts between the domain types of package shard and the
// messages of the protocol (docs/protocol.md). Strings, slices and maps are shared,
// not copied, except for those of the expected Nodes.
package wire

import (
	"slices"
	"strings"
	"unique"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"

	"nstance.dev/operator/pkg/operator/shard"
)

// Group converts status. A nil status becomes the zero Group.
func Group(status *nstancev1.GroupStatus) shard.Group {
	return shard.Group{
		Key:           status.GetKey(),
		Tenant:        status.GetTenant(),
		GroupSettings: settings(status),
		Declared:      declared(status.GetDeclared()),
		Size:          status.GetSize(),
		Static:        status.GetIsStatic(),
		ETag:          status.GetEtag(),
		ActualSize:    status.GetActualSize(),
		ProviderIDs:   status.GetProviderIds(),
		Deleting:      status.GetDeleting(),

		ListsInstances: status.GetInstances() != nil,
		Instances:      instances(status.GetInstances().GetInstances()),
		RemoveFirst:    status.GetRemoveFirst(),
		Node:           nodeShape(status.GetNode()),
		Revision:       revision(status.GetRevision()),
		Shortfall:      shard.Shortfall{Missing: status.GetShortfall().GetMissing(), Message: status.GetShortfall().GetMessage()},
	}
}

// instances converts managed instances, and sorts them by id: callers rely on the
// order, and servers may send another one.
func instances(messages []*nstancev1.ManagedInstance) []shard.Instance {
	if len(messages) == 0 {
		return nil
	}
	converted := make([]shard.Instance, len(messages))
	for i, message := range messages {
		converted[i] = shard.Instance{
			ID:         message.GetId(),
			State:      shard.InstanceState(message.GetStatus()),
			ProviderID: message.GetProviderId(),
		}
	}
	slices.SortFunc(converted, func(a, b shard.Instance) int { return strings.Compare(a.ID, b.ID) })
	return converted
}

func nodeShape(message *nstancev1.NodeShape) *shard.NodeShape {
	if message == nil {
		return nil
	}
	shape := &shard.NodeShape{
		Architecture:    message.GetArchitecture(),
		OperatingSystem: message.GetOperatingSystem(),
		Capacity:        interned(message.GetCapacity()),
		Labels:          interned(message.GetLabels()),
	}
	for _, taint := range message.GetTaints() {
		shape.Taints = append(shape.Taints, shard.Taint{Key: taint.GetKey(), Value: taint.GetValue(), Effect: taint.GetEffect()})
	}
	return shape
}

// interned returns a copy of m with canonical strings. The Nodes of a thousand groups
// have nearly the same labels and resources.
func interned(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	copied := make(map[string]string, len(m))
	for key, value := range m {
		copied[unique.Make(key).Value()] = unique.Make(value).Value()
	}
	return copied
}

// Upsert returns the request that sets the configuration of the group.
// Args stays empty: servers ignore it in UpsertGroup (docs/protocol.md#groups).
func Upsert(key string, config shard.GroupConfig) *nstancev1.UpsertGroupRequest {
	return &nstancev1.UpsertGroupRequest{
		Key:         key,
		Config:      groupConfig(config),
		RemoveFirst: config.RemoveFirst,
		Declarative: true,
		Revision:    revisionMessage(config.Revision),
		Replaces:    revisionMessage(config.Replaces),
	}
}

// Delete returns the request that deletes the group. own is nil for none.
func Delete(key string, own *shard.Revision) *nstancev1.DeleteGroupRequest {
	return &nstancev1.DeleteGroupRequest{Key: key, Revision: revisionMessage(own)}
}

func revision(message *nstancev1.Revision) *shard.Revision {
	if message == nil {
		return nil
	}
	return &shard.Revision{UID: message.GetUid(), Generation: message.GetGeneration()}
}

func revisionMessage(r *shard.Revision) *nstancev1.Revision {
	if r == nil {
		return nil
	}
	return &nstancev1.Revision{Uid: r.UID, Generation: r.Generation}
}
