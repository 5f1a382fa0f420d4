// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package why explains why an instance is being created, drained, deleted or kept, and which
// client or user has caused it.
package why

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/status"
)

// Verdict is the result of an explanation.
type Verdict string

const (
	// Created means: the instance does not run yet.
	Created Verdict = "Created"
	// Drained means: its Node is being emptied before the instance is deleted.
	Drained Verdict = "Drained"
	// Deleted means: the instance is being deleted or was deleted.
	Deleted Verdict = "Deleted"
	// Kept means: the instance runs, and no object requests its deletion.
	Kept Verdict = "Kept"
	// Unmanaged means: no object that was read has the instance of the Node.
	Unmanaged Verdict = "Unmanaged"
	// Unknown means: the objects of the instance could not be read.
	Unknown Verdict = "Unknown"
)

// Explanation is the output of "kubectl nstance why".
type Explanation struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Name       string  `json:"name"`
	Verdict    Verdict `json:"verdict"`

	Node           string `json:"node,omitempty"`
	ProviderID     string `json:"providerID,omitempty"`
	Instance       string `json:"instance,omitempty"`
	Namespace      string `json:"namespace,omitempty"`
	Pool           string `json:"pool,omitempty"`
	Shard          string `json:"shard,omitempty"`
	NstanceMachine string `json:"nstanceMachine,omitempty"`

	Reasons []Reason `json:"reasons"`
	// Drain is the drain of the Node, nil if the Node is not being drained.
	Drain *status.Drain `json:"drain,omitempty"`
	// Unknown lists the objects that could not be read.
	Unknown []string `json:"unknown,omitempty"`
}

// Kind is the kind of Explanation.
const Kind = "Explanation"

// Reason is a cause of the verdict, or a fact that explains it.
type Reason struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	// Source is the object that shows the reason.
	Source Source `json:"source"`
	// By is the client or controller that has caused the reason. If it is empty, ByUnknown says
	// why.
	By        string    `json:"by,omitempty"`
	ByUnknown string    `json:"byUnknown,omitempty"`
	At        time.Time `json:"at,omitzero"`
}

// Source is an object and a field.
type Source struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Field     string `json:"field,omitempty"`
}

// String returns kind/name and the field.
func (s Source) String() string {
	text := s.Kind + "/" + s.Name
	if s.Field != "" {
		text += " " + s.Field
	}
	return text
}

// Types of reasons.
const (
	DrainRequested    = "DrainRequested"
	DrainTimedOut     = "DrainTimedOut"
	Replicas          = "Replicas"
	ShardSize         = "ShardSize"
	ScaleDown         = "ScaleDown"
	Configuration     = "Configuration"
	DeletionCandidate = "DeletionCandidate"
	RemoveFirst       = "RemoveFirst"
	MachineDeleted    = "MachineDeleted"
	HealthCheck       = "HealthCheck"
	PoolDeleted       = "PoolDeleted"
	DeletionPolicy    = "DeletionPolicy"
	ShardRemoved      = "ShardRemoved"
	Guard             = "Guard"
	Lent              = "Lent"
	Shortfall         = "Shortfall"
	Paused            = "Paused"
	ShardUnreachable  = "ShardUnreachable"
	Pod               = "Pod"
	Owner             = "Owner"
	Condition         = "Condition"
	NoNode            = "NoNode"
)

// Explain explains what happens to the instance that [objects.Snapshot.Locate] finds by a name.
func Explain(s *objects.Snapshot, name string) Explanation {
	e := explainer{Snapshot: s, subject: s.Locate(name)}
	e.result = Explanation{
		APIVersion: objects.APIVersion, Kind: Kind, Name: name, ProviderID: e.subject.ProviderID(),
		Reasons: []Reason{}, Unknown: s.Unknown(),
	}
	e.describe()
	for _, drain := range status.FindDrains(s) {
		if e.subject.Node != nil && drain.Node == e.subject.Node.Name {
			e.result.Drain = &drain
		}
	}
	e.result.Verdict = e.verdict()
	e.missingNode()
	e.drain()
	e.machine()
	e.pool()
	e.shard()
	e.requester()
	return e.result
}

// explainer collects the reasons from the objects of an instance.
type explainer struct {
	*objects.Snapshot
	subject objects.Subject
	result  Explanation
}

func (e *explainer) add(reason Reason) { e.result.Reasons = append(e.result.Reasons, reason) }

// describe sets the names of the instance and of its objects.
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
	case drain != nil && drain.State == status.DrainUnreported:
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

var sentences = map[Verdict]string{
	Created:   "%s is being created.",
	Drained:   "%s is being drained.",
	Deleted:   "%s is being deleted.",
	Kept:      "%s is kept.",
	Unmanaged: "%s belongs to no instance that was found. Use -A for all namespaces.",
	Unknown:   "What happens to %s is unknown.",
}

// Print writes an explanation: a sentence, the names of the instance, a table of the reasons,
// and the drain.
func Print(w io.Writer, e Explanation, options status.PrintOptions) error {
	subject := e.Name
	switch {
	case e.Node != "":
		subject = "Node " + e.Node
	case e.NstanceMachine != "":
		subject = "NstanceMachine " + e.NstanceMachine
	case e.ProviderID != "":
		subject = "Instance " + e.Name
	}
	fmt.Fprintf(w, sentences[e.Verdict]+"\n", subject)
	for _, line := range []struct{ name, value string }{
		{"pool", e.Pool}, {"shard", e.Shard}, {"instance", e.Instance}, {"provider id", e.ProviderID},
		{"NstanceMachine", e.NstanceMachine}, {"namespace", e.Namespace},
	} {
		if line.value != "" {
			fmt.Fprintf(w, "  %-15s %s\n", line.name+":", line.value)
		}
	}
	if len(e.Reasons) > 0 {
		fmt.Fprintln(w)
		table := status.NewTable(options, status.Column{Name: "REASON"}, status.Column{Name: "AGE"}, status.Column{Name: "BY"},
			status.Column{Name: "SOURCE"}, status.Column{Name: "MESSAGE"}, status.Column{Name: "BY-UNKNOWN", Wide: true})
		for _, reason := range e.Reasons {
			table.Add(reason.Type, options.Age(reason.At), cmp.Or(reason.By, "<unknown>"), reason.Source.String(), reason.Message, reason.ByUnknown)
		}
		if err := table.Print(w); err != nil {
			return err
		}
	}
	if e.Drain != nil {
		fmt.Fprintln(w)
		status.PrintDrainDetails(w, []status.Drain{*e.Drain}, options)
	}
	status.PrintUnknown(w, e.Unknown)
	return nil
}
