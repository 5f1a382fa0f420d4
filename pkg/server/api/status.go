// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// newStatus tells of a group and of its instances. node is nil when nothing is
// known of it.
func newStatus(group *groups.Group, instances []instance.Instance, node *corev1.Node) *nstancev1.GroupStatus {
	status := &nstancev1.GroupStatus{
		Key:          group.Key.Group,
		Tenant:       group.Key.Tenant,
		Template:     group.Template,
		Size:         group.Size,
		InstanceType: group.InstanceType,
		Subnets:      group.SubnetPools,
		Vars:         group.Vars,
		IsStatic:     group.Static,
		Etag:         group.ETag,
		RemoveFirst:  group.RemoveFirst,
		Node:         newNodeShape(node),
	}
	setInstances(status, instances)
	return status
}

// newDeletingStatus tells of the instances that a deleted group has yet: all of
// them are to go. before is what was told of the group last. It is nil when the
// server has started since the deletion: then nothing but the instances is known.
func newDeletingStatus(key instance.GroupKey, before *nstancev1.GroupStatus, instances []instance.Instance) *nstancev1.GroupStatus {
	status := &nstancev1.GroupStatus{
		Key:          key.Group,
		Tenant:       key.Tenant,
		Template:     before.GetTemplate(),
		InstanceType: before.GetInstanceType(),
		Subnets:      before.GetSubnets(),
		Vars:         before.GetVars(),
		IsStatic:     before.GetIsStatic(),
		Etag:         before.GetEtag(),
		Deleting:     true,
		Node:         before.GetNode(),
	}
	setInstances(status, instances)
	return status
}

// setInstances tells of all instances, and of those that run once more in the way
// that peers without the extension know: what is on its way, in or out, is
// nobody's to use (server document).
func setInstances(status *nstancev1.GroupStatus, instances []instance.Instance) {
	list := make([]*nstancev1.ManagedInstance, len(instances))
	for n := range instances {
		i := &instances[n]
		list[n] = &nstancev1.ManagedInstance{
			Id:         i.ID,
			ProviderId: i.ProviderID,
			Status:     instanceStatus(i),
			CreatedAt:  timestamppb.New(i.CreatedAt),
		}
		// One that drains runs, and so does an impaired one. One that was told to
		// end is listed until it is gone: whoever finds its id no more may take its
		// Node for one to be deleted. Without a provider's id nobody finds it.
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

// runs tells whether an instance can be used. One that drains runs until it is
// told to end, and an impaired one runs too: that its provider complains is the
// server's to deal with. One that runs for a moment without its provider's id on
// record does not count yet: nobody could find its Node.
func runs(i *instance.Instance) bool {
	return (i.State == instance.Running || i.State == instance.Impaired) && i.ProviderID != ""
}

// managed returns the instances that the size of their group is about. Those that
// were ordered one by one are beside it, and outlive it (server document).
func managed(instances []instance.Instance) []instance.Instance {
	return slices.DeleteFunc(slices.Clone(instances), func(i instance.Instance) bool { return i.OnDemand })
}
