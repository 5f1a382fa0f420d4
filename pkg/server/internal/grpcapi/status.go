// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/stock"
	"nstance.dev/operator/pkg/server/provision"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// newGroupEvent returns the event of a status, which is nil if the group was deleted.
func newGroupEvent(key instance.GroupKey, status *nstancev1.GroupStatus) *nstancev1.GroupEvent {
	if status != nil {
		return &nstancev1.GroupEvent{Type: nstancev1.GroupEvent_TYPE_UPSERT, Group: status}
	}
	return &nstancev1.GroupEvent{
		Type:  nstancev1.GroupEvent_TYPE_DELETE,
		Group: &nstancev1.GroupStatus{Key: key.Group, Tenant: key.Tenant},
	}
}

// newStatus returns the status of a group and of its instances. node is nil if the provider
// cannot predict its properties.
func newStatus(group *groups.Group, instances []instance.Instance, node *corev1.Node) *nstancev1.GroupStatus {
	status := &nstancev1.GroupStatus{
		Key:         group.Key.Group,
		Tenant:      group.Key.Tenant,
		Size:        group.Size,
		IsStatic:    group.Static,
		Etag:        group.ETag,
		RemoveFirst: group.RemoveFirst,
		Rotation:    newRotation(group.Rotation),
		Replace:     group.Replace,
		Node:        newNodeShape(node),
	}
	if group.MinSize > 0 {
		status.Limits = &nstancev1.GroupLimits{MinSize: group.MinSize}
	}
	setSettings(status, group)
	setRevision(status, group.Revision)
	setInstances(status, instances)
	return status
}

// newDeletingStatus returns the status of a deleted group that still has instances, all of
// which are being deleted. last is its last reported status. It is nil if the server has
// started since the deletion: then only the instances are known.
func newDeletingStatus(key instance.GroupKey, last *nstancev1.GroupStatus, instances []instance.Instance) *nstancev1.GroupStatus {
	status := &nstancev1.GroupStatus{}
	if last != nil {
		// The settings stay the settings of the deleted group.
		status = proto.CloneOf(last)
	}
	status.Key, status.Tenant = key.Group, key.Tenant
	status.Deleting = true
	status.Size, status.RemoveFirst, status.DeletionOrder, status.Declared = 0, nil, nil, &nstancev1.GroupSettings{}
	status.Rotation, status.RotationProgress, status.Replace = nil, nil, nil
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

// setSettings reports the settings in effect, and the settings that were declared last. A
// group without a declaration reports an empty one, by which the client knows that the server
// supports declarations (docs/protocol.md#extensions).
func setSettings(status *nstancev1.GroupStatus, group *groups.Group) {
	groups.ReportSettings(status, group)
	status.Declared = &nstancev1.GroupSettings{}
	if group.Declared != nil {
		status.Declared = groups.SettingsMessage(*group.Declared)
	}
}

// revisionFrom returns nil for a client that sends no revision.
func revisionFrom(message *nstancev1.Revision) *groups.Revision {
	if message == nil {
		return nil
	}
	return &groups.Revision{UID: message.GetUid(), Generation: message.GetGeneration()}
}

// setRevision reports an empty revision for a group without one, by which the client
// knows that the server supports revisions (docs/protocol.md#extensions).
func setRevision(status *nstancev1.GroupStatus, revision *groups.Revision) {
	status.Revision = &nstancev1.Revision{}
	if revision != nil {
		status.Revision.Uid, status.Revision.Generation = revision.UID, revision.Generation
	}
}

// rotationFrom returns nil for a client that sends no grant. Each number of a grant is required:
// zero means that nothing may be done, and must not come from a client that has forgotten it.
func rotationFrom(message *nstancev1.RotationGrant) (*groups.RotationGrant, error) {
	if message == nil {
		return nil, nil
	}
	if message.MaxSurge == nil || message.MaxUnavailable == nil || message.UpToDate == nil {
		return nil, errors.New("rotation: max_surge, max_unavailable and up_to_date are required")
	}
	for _, timestamp := range []*timestamppb.Timestamp{message.GetNotAfter(), message.GetAfter()} {
		if timestamp != nil && !timestamp.IsValid() {
			return nil, errors.New("rotation: not_after and after must be times from the year 1 to 9999")
		}
	}
	return &groups.RotationGrant{
		MaxSurge:       message.GetMaxSurge(),
		MaxUnavailable: message.GetMaxUnavailable(),
		UpToDate:       message.GetUpToDate(),
		NotAfter:       timeFrom(message.GetNotAfter()),
		After:          timeFrom(message.GetAfter()),
		MaxAgeSeconds:  message.GetMaxAgeSeconds(),
		Target:         message.GetTarget(),
	}, nil
}

// timeFrom returns nil for a missing timestamp.
func timeFrom(timestamp *timestamppb.Timestamp) *time.Time {
	if timestamp == nil {
		return nil
	}
	t := timestamp.AsTime()
	return &t
}

// newTimestamp is the reverse of timeFrom.
func newTimestamp(t *time.Time) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return timestamppb.New(*t)
}

// newRotation returns the message of a grant, nil without a grant.
func newRotation(grant *groups.RotationGrant) *nstancev1.RotationGrant {
	if grant == nil {
		return nil
	}
	return &nstancev1.RotationGrant{
		MaxSurge:       &grant.MaxSurge,
		MaxUnavailable: &grant.MaxUnavailable,
		UpToDate:       &grant.UpToDate,
		NotAfter:       newTimestamp(grant.NotAfter),
		After:          newTimestamp(grant.After),
		MaxAgeSeconds:  grant.MaxAgeSeconds,
		Target:         grant.Target,
	}
}

// setProgress reports the progress of a rotation, and which of the reported instances are
// outdated.
func setProgress(status *nstancev1.GroupStatus, progress instance.RotationProgress, order []instance.NextDeletion) {
	status.RotationProgress = &nstancev1.RotationProgress{
		UpToDate: int32(progress.UpToDate), Above: int32(progress.Above), Below: int32(progress.Below),
		Target: progress.Target,
	}
	if !progress.ForcedAt.IsZero() {
		status.RotationProgress.ForcedAt = timestamppb.New(progress.ForcedAt)
	}
	for reason, count := range progress.Outdated {
		if status.RotationProgress.Outdated == nil {
			status.RotationProgress.Outdated = map[string]int32{}
		}
		status.RotationProgress.Outdated[reason] = int32(count)
	}
	outdated := make(map[string]string, len(order))
	for _, next := range order {
		outdated[next.ID] = next.Outdated
	}
	for _, listed := range status.Instances.Instances {
		listed.Outdated = outdated[listed.Id]
	}
}

// setCandidateUse reports the use of the candidates of a group.
func setCandidateUse(status *nstancev1.GroupStatus, uses []stock.Use) {
	for _, use := range uses {
		status.CandidateUse = append(status.CandidateUse, &nstancev1.CandidateUse{
			Name: use.Variant.Name, InstanceType: use.Variant.InstanceType, Market: use.Variant.Market,
			Instances: int32(use.Instances), Unavailable: validText(use.Unavailable),
		})
	}
}

// setInstances lists all instances in the extension field, and the provider ids of running
// instances in the field that clients without the extension read
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
		if isListed(i) {
			status.ProviderIds = append(status.ProviderIds, i.ProviderID)
		}
	}
	slices.SortFunc(list, func(a, b *nstancev1.ManagedInstance) int { return strings.Compare(a.Id, b.Id) })
	status.Instances = &nstancev1.ManagedInstances{Instances: list}
	slices.Sort(status.ProviderIds)
	status.ActualSize = int32(len(status.ProviderIds))
}

// isListed reports whether the provider id of an instance is reported. Draining and impaired
// instances run. An instance that is being deleted is listed until it is deleted: a client that
// does not find the id may delete the Node too early. Without a provider id no client finds the
// Node.
func isListed(i *instance.Instance) bool {
	runs := i.State == instance.Running || i.State == instance.Impaired ||
		i.State == instance.Terminating && i.DeleteReason != ""
	return runs && i.ProviderID != ""
}

// maxDeletionOrder is how many instances of a deletion order are reported.
const maxDeletionOrder = 100

// setDeletionOrder reports the first listed instances of a deletion order. Instances that do not
// run change too often, and each change would be a write of the operator.
func setDeletionOrder(status *nstancev1.GroupStatus, order []instance.NextDeletion, instances []instance.Instance) {
	runs := make(map[string]bool, len(instances))
	for n := range instances {
		runs[instances[n].ID] = isListed(&instances[n])
	}
	for _, next := range order {
		if len(status.DeletionOrder) == maxDeletionOrder {
			return
		}
		if runs[next.ID] {
			status.DeletionOrder = append(status.DeletionOrder, &nstancev1.NextDeletion{InstanceId: next.ID, Reason: next.Reason})
		}
	}
}

// usable reports whether an instance can be used. A draining instance can be used until it is
// being deleted, and so can an impaired instance, which the server replaces. A running
// instance whose provider id is not recorded yet cannot: no client could find its Node.
func usable(i *instance.Instance) bool {
	return (i.State == instance.Running || i.State == instance.Impaired) && i.ProviderID != ""
}

// managed returns the instances that count in the size of their group. On-demand
// instances do not count, and outlive the group (docs/server.md#instances).
func managed(instances []instance.Instance) []instance.Instance {
	return slices.DeleteFunc(slices.Clone(instances), func(i instance.Instance) bool { return i.OnDemand })
}

// expectedNode returns the properties that are certain of each Node of a group, nil if none are.
func (c *StatusCache) expectedNode(group *groups.Group) *corev1.Node {
	if len(group.Variants) == 0 {
		return c.nodes.ExpectedNode(provision.Common(group))
	}
	nodes := make([]*corev1.Node, len(group.Variants))
	for n, v := range group.Variants {
		nodes[n] = c.nodes.ExpectedNode(provision.Common(group.As(v)))
	}
	return provision.CommonNode(nodes)
}

// newNodeShape returns the known properties of a Node, or nil if node is nil.
func newNodeShape(node *corev1.Node) *nstancev1.NodeShape {
	if node == nil {
		return nil
	}
	shape := &nstancev1.NodeShape{
		Architecture:    node.Status.NodeInfo.Architecture,
		OperatingSystem: node.Status.NodeInfo.OperatingSystem,
		Capacity:        make(map[string]string, len(node.Status.Capacity)),
		Labels:          node.Labels,
	}
	for name, quantity := range node.Status.Capacity {
		shape.Capacity[string(name)] = quantity.String()
	}
	for _, taint := range node.Spec.Taints {
		shape.Taints = append(shape.Taints, &nstancev1.NodeTaint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)})
	}
	return shape
}
