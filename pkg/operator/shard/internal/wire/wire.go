// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package wire converts between the types of package shard and the messages of the protocol
// (docs/protocol.md). Strings, slices and maps are shared and not copied, except in NodeShape.
package wire

import (
	"maps"
	"slices"
	"strings"
	"time"
	"unique"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Group converts status. A nil status becomes the zero Group.
func Group(status *nstancev1.GroupStatus) shard.Group {
	return shard.Group{
		Key:           status.GetKey(),
		Tenant:        status.GetTenant(),
		GroupSettings: shard.SettingsOf(status),
		Declared:      declared(status.GetDeclared()),
		Size:          status.GetSize(),
		Static:        status.GetIsStatic(),
		ETag:          status.GetEtag(),
		ActualSize:    status.GetActualSize(),
		ProviderIDs:   status.GetProviderIds(),
		Deleting:      status.GetDeleting(),

		ListsInstances: status.GetInstances() != nil,
		Instances:      instances(status.GetInstances().GetInstances()),
		DeletionOrder:  deletionOrder(status.GetDeletionOrder()),
		RemoveFirst:    status.GetRemoveFirst(),
		Rotation:       grant(status.GetRotation()),
		Replace:        status.GetReplace(),
		Progress:       progress(status.GetRotationProgress()),
		Shape:          nodeShape(status.GetNode()),
		Revision:       revision(status.GetRevision()),
		KnownSettings:  status.GetKnownSettings(),
		MinSize:        status.GetLimits().GetMinSize(),
		Shortfall:      shard.Shortfall{Missing: status.GetShortfall().GetMissing(), Message: text(status.GetShortfall().GetMessage())},
		CandidateUse:   candidateUse(status.GetCandidateUse()),
	}
}

// text returns the beginning of a text for people, as a copy if it is too long: a part of a string
// keeps the memory of the whole.
func text(s string) string {
	if len(s) <= shard.MaxText {
		return s
	}
	return strings.ToValidUTF8(strings.Clone(s[:shard.MaxText]), "")
}

// instances converts managed instances, and sorts them by id: callers rely on the order, and
// servers may send another order.
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
			Created:    message.GetCreatedAt().GetSeconds(),
			// The same few reasons come again and again.
			Outdated: unique.Make(message.GetOutdated()).Value(),
		}
	}
	slices.SortFunc(converted, func(a, b shard.Instance) int { return strings.Compare(a.ID, b.ID) })
	return converted
}

// deletionOrder converts the beginning of a deletion order.
func deletionOrder(messages []*nstancev1.NextDeletion) []shard.NextDeletion {
	if len(messages) == 0 {
		return nil
	}
	order := make([]shard.NextDeletion, min(len(messages), shard.MaxDeletionOrder))
	for i := range order {
		// The same few reasons come again and again.
		order[i] = shard.NextDeletion{InstanceID: messages[i].GetInstanceId(), Reason: unique.Make(messages[i].GetReason()).Value()}
	}
	return order
}

// candidateUse converts the use of the first candidates: a server with more violates the protocol.
func candidateUse(messages []*nstancev1.CandidateUse) []shard.CandidateUse {
	if len(messages) == 0 {
		return nil
	}
	use := make([]shard.CandidateUse, min(len(messages), shard.MaxCandidates))
	for i := range use {
		use[i] = shard.CandidateUse{
			Name: messages[i].GetName(), InstanceType: messages[i].GetInstanceType(), Market: messages[i].GetMarket(),
			Instances: messages[i].GetInstances(), Unavailable: text(messages[i].GetUnavailable()),
		}
	}
	return use
}

func grant(message *nstancev1.RotationGrant) *shard.RotationGrant {
	if message == nil {
		return nil
	}
	return &shard.RotationGrant{
		MaxSurge: message.GetMaxSurge(), MaxUnavailable: message.GetMaxUnavailable(), UpToDate: message.GetUpToDate(),
		NotAfter: timeOrZero(message.GetNotAfter()), After: timeOrZero(message.GetAfter()), MaxAgeSeconds: message.GetMaxAgeSeconds(),
		Target: message.GetTarget(),
	}
}

// grantMessage always has the three numbers: a server rejects a grant that lacks one of them.
func grantMessage(grant *shard.RotationGrant) *nstancev1.RotationGrant {
	if grant == nil {
		return nil
	}
	return &nstancev1.RotationGrant{
		MaxSurge: &grant.MaxSurge, MaxUnavailable: &grant.MaxUnavailable, UpToDate: &grant.UpToDate,
		NotAfter: timestamp(grant.NotAfter), After: timestamp(grant.After), MaxAgeSeconds: grant.MaxAgeSeconds,
		Target: grant.Target,
	}
}

// timestamp returns nil for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// progress converts the progress of a rotation, with the first reasons in the order of their names.
func progress(message *nstancev1.RotationProgress) *shard.RotationProgress {
	if message == nil {
		return nil
	}
	converted := &shard.RotationProgress{
		UpToDate: message.GetUpToDate(), Above: message.GetAbove(), Below: message.GetBelow(), Target: message.GetTarget(),
		ForcedAt: timeOrZero(message.GetForcedAt()),
	}
	reasons := slices.Sorted(maps.Keys(message.GetOutdated()))
	for _, reason := range reasons[:min(len(reasons), shard.MaxOutdatedReasons)] {
		if converted.Outdated == nil {
			converted.Outdated = map[string]int32{}
		}
		converted.Outdated[unique.Make(reason).Value()] = message.GetOutdated()[reason]
	}
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
		Labels:          shard.LabelsOf(message.GetLabels()),
	}
	for i, label := range shape.Labels {
		shape.Labels[i] = shard.Label{Key: unique.Make(label.Key).Value(), Value: unique.Make(label.Value).Value()}
	}
	for _, taint := range message.GetTaints() {
		shape.Taints = append(shape.Taints, shard.Taint{Key: taint.GetKey(), Value: taint.GetValue(), Effect: taint.GetEffect()})
	}
	return shape
}

// interned returns a copy of m whose strings share memory with equal strings. The Nodes of a
// thousand groups have nearly the same resources, and labels.
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
		Rotation:    grantMessage(config.Rotation),
		Replace:     config.Replace,
		Declarative: true,
		Revision:    revisionMessage(config.Revision),
		Replaces:    revisionMessage(config.Replaces),
	}
}

// Delete returns the request that deletes the group. own may be nil.
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

func declared(message *nstancev1.GroupSettings) *shard.GroupSettings {
	if message == nil {
		return nil
	}
	settings := shard.SettingsOf(message)
	return &settings
}

// groupConfig returns the configuration of an UpsertGroup request.
func groupConfig(config shard.GroupConfig) *nstancev1.GroupConfig {
	message := config.Config()
	message.Size = config.Size
	return message
}

// InstanceConfig returns the configuration of a CreateInstance request.
func InstanceConfig(spec shard.InstanceSpec) *nstancev1.InstanceConfig {
	return &nstancev1.InstanceConfig{Group: spec.Group, InstanceType: spec.InstanceType, Vars: spec.Vars, LoadBalancers: spec.LoadBalancers}
}

// Instance converts the reply to GetInstanceStatus.
func Instance(response *nstancev1.InstanceStatusResponse) shard.Instance {
	return shard.Instance{
		ID:         response.GetInstanceId(),
		State:      shard.InstanceState(response.GetStatus()),
		ProviderID: response.GetProviderInstanceId(),
		DeleteAt:   timeOrZero(response.GetDeleteAt()),
	}
}

// timeOrZero returns the zero time for a missing or invalid timestamp, for which AsTime would
// return the year 1970.
func timeOrZero(timestamp *timestamppb.Timestamp) time.Time {
	if !timestamp.IsValid() {
		return time.Time{}
	}
	return timestamp.AsTime()
}

// Notice converts event, without Announced and Deadline. A nil event becomes the zero
// DeletionNotice. The state may be unknown to the operator.
func Notice(event *nstancev1.InstanceEvent) shard.DeletionNotice {
	return shard.DeletionNotice{
		InstanceID: event.GetInstanceId(),
		ProviderID: event.GetProviderInstanceId(),
		Group:      event.GetGroup(),
		State:      shard.NoticeState(event.GetStatus()),
		Reason:     text(event.GetReason()),
		Since:      timeOrZero(event.GetUnhealthyAt()),
		DeleteAt:   timeOrZero(event.GetDeleteAt()),
		Addresses:  event.GetAddresses(),
	}
}

// ErrorEvent converts event. A nil event becomes the zero ErrorEvent.
func ErrorEvent(event *nstancev1.ErrorEvent) shard.ErrorEvent {
	return shard.ErrorEvent{
		Group:      event.GetGroup(),
		InstanceID: event.GetInstanceId(),
		Message:    text(event.GetError()),
		Time:       timeOrZero(event.GetTimestamp()),
	}
}
