// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// newStatus returns the status of a group and of its instances. node is nil when
// the provider knows nothing of it.
func newStatus(group *groups.Group, instances []instance.Instance, node *corev1.Node) *nstancev1.GroupStatus {
	status := &nstancev1.GroupStatus{
		Key:         group.Key.Group,
		Tenant:      group.Key.Tenant,
		Size:        group.Size,
		IsStatic:    group.Static,
		Etag:        group.ETag,
		RemoveFirst: group.RemoveFirst,
		Node:        newNodeShape(node),
	}
	setSettings(status, group)
	setRevision(status, group.Revision)
	setInstances(status, instances)
	return status
}

// newDeletingStatus returns the status of a deleted group that still has
// instances, all of which are being deleted. last is its last reported status. It
// is nil when the server has started since the deletion: then only the instances
// are known.
func newDeletingStatus(key instance.GroupKey, last *nstancev1.GroupStatus, instances []instance.Instance) *nstancev1.GroupStatus {
	status := &nstancev1.GroupStatus{}
	if last != nil {
		// The settings are those of the deleted group.
		status = proto.CloneOf(last)
	}
	status.Key, status.Tenant = key.Group, key.Tenant
	status.Deleting = true
	status.Size, status.RemoveFirst, status.Declared = 0, nil, &nstancev1.GroupSettings{}
	setRevision(status, nil)
	setInstances(status, instances)
	return status
}

// newLostStatus returns the status of a group that the storage has lost: only its
// instances are known. It is not being deleted, and has the size that keeps them. Without
// a revision, each operator that has the group sends it.
func newLostStatus(key instance.GroupKey, instances []instance.Instance) *nstancev1.GroupStatus {
	status := &nstancev1.GroupStatus{
		Key: key.Group, Tenant: key.Tenant, Size: int32(len(instances)), Declared: &nstancev1.GroupSettings{},
	}
	setRevision(status, nil)
	setInstances(status, instances)
	return status
}

// setInstances lists all instances in the extension field, and the provider ids of
// the running ones in the field that clients without the extension read
// (docs/protocol.md#extensions).
func setInstances(status *nstancev1.GroupStatus, instances []instance.Instance) {
	list := make([]*nstancev1.ManagedInstance, len(instances))
	status.ProviderIds = nil
	for n := range instances {
		i := &instances[n]
		list[n] = &nstancev1.ManagedInstance{
			Id:         i.ID,
			ProviderId: i.ProviderID,
			Status:     instanceStatus(i),
			CreatedAt:  timestamppb.New(i.CreatedAt),
		}
		// Draining and impaired instances run. An instance that is being deleted
		// is listed until it is deleted: a client that does not find the id may
		// delete the Node too early. Without a provider id no client finds the
		// Node.
		listed := i.State == instance.Running || i.State == instance.Impaired ||
			i.State == instance.Terminating && i.DeleteReason != ""
		if listed && i.ProviderID != "" {
			status.ProviderIds = append(status.ProviderIds, i.ProviderID)
		}
	}
	slices.SortFunc(list, func(a, b *nstancev1.ManagedInstance) int { return strings.Compare(a.Id, b.Id) })
	status.Instances = &nstancev1.ManagedInstances{Instances: list}
	slices.Sort(status.ProviderIds)
	status.ActualSize = int32(len(status.ProviderIds))
}

// usable reports whether an instance can be used. A draining instance can until it
// is being deleted, and so can an impaired one, which the server replaces. A
// running instance whose provider id is not recorded yet cannot: no client could
// find its Node.
func usable(i *instance.Instance) bool {
	return (i.State == instance.Running || i.State == instance.Impaired) && i.ProviderID != ""
}

// managed returns the instances that count in the size of their group. On-demand
// instances do not count, and outlive the group (docs/server.md#instances).
func managed(instances []instance.Instance) []instance.Instance {
	return slices.DeleteFunc(slices.Clone(instances), func(i instance.Instance) bool { return i.OnDemand })
}
