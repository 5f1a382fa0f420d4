// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package why

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/meta"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/drains"
	"nstance.dev/operator/pkg/plugin/objects"
)

// Explain explains what happens to the instance of a Node, or of an NstanceMachine that has
// this name or instance id.
func Explain(s *objects.Snapshot, name string) Explanation {
	e := explainer{Snapshot: s, subject: s.Locate(name)}
	e.result = Explanation{
		APIVersion: objects.APIVersion, Kind: Kind, Name: name, ProviderID: e.subject.ProviderID(),
		Reasons: []Reason{}, Unknown: s.Unknown(),
	}
	e.describe()
	for _, drain := range drains.Find(s) {
		if e.subject.Node != nil && drain.Node == e.subject.Node.Name {
			e.result.Drain = &drain
		}
	}
	e.result.Verdict = e.verdict()
	e.drain()
	e.machine()
	e.pool()
	e.shard()
	e.requester()
	return e.result
}

// explainer has the objects of an instance, and collects the reasons.
type explainer struct {
	*objects.Snapshot
	subject objects.Subject
	result  Explanation
}

func (e *explainer) add(reason Reason) { e.result.Reasons = append(e.result.Reasons, reason) }

// describe sets what the instance is.
func (e *explainer) describe() {
	x := &e.result
	if node := e.subject.Node; node != nil {
		x.Node = node.Name
		x.Shard, x.Instance, _ = objects.CordonedFor(node)
	}
	if machine := e.subject.NstanceMachine; machine != nil {
		x.NstanceMachine, x.Namespace = machine.Name, machine.Namespace
		x.Shard = cmp.Or(machine.Status.Shard, string(machine.Spec.Shard), x.Shard)
		x.Instance = cmp.Or(machine.Status.InstanceID, x.Instance)
	}
	if group := e.subject.ShardGroup; group != nil {
		x.Namespace, x.Shard = group.Namespace, string(group.Spec.Shard)
	}
	if pool := e.subject.Pool; pool != nil {
		x.Pool = pool.Name
	}
}

func (e *explainer) verdict() Verdict {
	machine := e.subject.NstanceMachine
	switch drain := e.result.Drain; {
	case drain != nil && drain.State == drains.Unreported:
		return Deleted
	case drain != nil:
		return Drained
	case machine != nil && !machine.DeletionTimestamp.IsZero(),
		machine != nil && meta.IsStatusConditionTrue(machine.Status.Conditions, v1beta1.ConditionServerDeleted),
		e.subject.Machine != nil && !e.subject.Machine.DeletionTimestamp.IsZero():
		return Deleted
	case machine != nil && objects.ProviderIDOf(machine) == "",
		machine != nil && e.subject.Node == nil && !meta.IsStatusConditionTrue(machine.Status.Conditions, v1beta1.ConditionReady):
		return Created
	case e.subject.ShardGroup != nil, machine != nil:
		return Kept
	case e.ShardGroups.Unknown != "" || e.NstanceMachines.Unknown != "" || e.Nodes.Unknown != "":
		return Unknown
	}
	return Unmanaged
}
