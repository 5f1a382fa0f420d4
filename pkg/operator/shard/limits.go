// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits of what the operator keeps of a shard (docs/reference.md#limits-of-shards). Without them,
// one server could end the operator of all shards.
const (
	MaxGroups    = 2000
	MaxInstances = 20_000
	// MaxNotices is the maximum number of deletion notices.
	MaxNotices = 20_000
	// MaxBytes is the maximum size of all groups, in bytes.
	MaxBytes = 16 << 20
	// MaxVars is the maximum number of vars of a group, and MaxVar the maximum length of a value.
	// The vars of the server's configuration have no limit of their own.
	MaxVars = 1000
	MaxVar  = 64 << 10
	// MaxDeletionOrder is the number of entries after which the deletion order of a group is cut
	// off.
	MaxDeletionOrder = 100
	// MaxString is the maximum length of an id, a name or another value, in bytes.
	MaxString = 1024
	// MaxText is the length at which a text for people is cut off, in bytes.
	MaxText = 4096
)

// Limit names a limit, in messages and as a label of metrics.
type Limit string

// The limits.
const (
	LimitGroups    Limit = "groups"
	LimitInstances Limit = "instances"
	LimitNotices   Limit = "notices"
	LimitBytes     Limit = "bytes"
	LimitVars      Limit = "vars"
	LimitString    Limit = "string"
	// LimitMessage limits the memory that a message takes when it is decoded.
	LimitMessage Limit = "message"
)

// LimitError means that a shard reports more than the operator keeps. The report is ignored as a
// whole, and the shard counts as unreachable: a part of the report could look as if groups or
// instances had been deleted.
type LimitError struct {
	Limit Limit
	// Message says what is more than allowed, with numbers.
	Message string
}

func (e *LimitError) Error() string { return e.Message }

// GRPCStatus gives the error the code Unavailable, so that IsUnreachable is true: a call may have
// had an effect.
func (e *LimitError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}

// Exceeded returns the limit of the LimitError that err wraps, "" if it wraps none.
func Exceeded(err error) Limit {
	if exceeded, ok := errors.AsType[*LimitError](err); ok {
		return exceeded.Limit
	}
	return ""
}

// Exceeds returns a LimitError if got, a number of what, is more than limit allows.
func Exceeds(limit Limit, what string, got, allowed int) error {
	if got <= allowed {
		return nil
	}
	return &LimitError{limit, fmt.Sprintf("the shard reports %d %s, at most %d are allowed", got, what, allowed)}
}

// Size is how much of the limits of a shard its groups take.
type Size struct{ Instances, Bytes int }

// Add returns the sum of two sizes.
func (s Size) Add(other Size) Size {
	return Size{s.Instances + other.Instances, s.Bytes + other.Bytes}
}

// Sub returns s without other.
func (s Size) Sub(other Size) Size {
	return Size{s.Instances - other.Instances, s.Bytes - other.Bytes}
}

// Check returns a LimitError if the sizes of all groups of a shard are more than allowed.
func (s Size) Check() error {
	if err := Exceeds(LimitInstances, "instances", s.Instances, MaxInstances); err != nil {
		return err
	}
	return Exceeds(LimitBytes, "bytes of groups", s.Bytes, MaxBytes)
}

// Measure returns the size of a group, or a LimitError if a value of the group is longer than
// allowed. A server without the list of instances has provider ids only.
func Measure(g Group) (Size, error) {
	m := measurement{group: g.Key}
	m.add("tenant", g.Tenant)
	m.add("etag", g.ETag)
	m.settings(g.GroupSettings)
	if g.Declared != nil {
		m.settings(*g.Declared)
	}
	m.add("provider id", g.ProviderIDs...)
	m.add("id in remove_first", g.RemoveFirst...)
	m.add("id in replace", g.Replace...)
	for _, instance := range g.Instances {
		m.add("value of an instance", instance.ID, instance.ProviderID, string(instance.State), instance.Outdated)
	}
	for _, next := range g.DeletionOrder {
		m.add("value of the deletion order", next.InstanceID, next.Reason)
	}
	for _, use := range g.CandidateUse {
		m.add("value of a candidate", use.Name, use.InstanceType, use.Market)
		m.bytes += perValue + len(use.Unavailable)
	}
	if node := g.Shape; node != nil {
		m.add("value of the node", node.Architecture, node.OperatingSystem)
		m.values("value of the node", node.Capacity, MaxString)
		for _, label := range node.Labels {
			m.value("name of a value of the node", label.Key, MaxString)
			m.value("value of the node", label.Value, MaxString)
		}
		for _, taint := range node.Taints {
			m.add("value of the node", taint.Key, taint.Value, taint.Effect)
		}
	}
	if g.Rotation != nil {
		m.add("target of the grant", g.Rotation.Target)
	}
	if g.Progress != nil {
		m.add("target of the rotation", g.Progress.Target)
		for reason := range g.Progress.Outdated {
			m.add("reason of the rotation", reason)
		}
	}
	if g.Revision != nil {
		m.add("revision", g.Revision.UID)
	}
	m.bytes += len(g.Key) + len(g.Shortfall.Message)
	return Size{Instances: max(len(g.ProviderIDs), len(g.Instances)), Bytes: m.bytes}, m.err
}

// measurement adds up the lengths of the values of a group.
type measurement struct {
	group string
	bytes int
	// err is the first value that is too long.
	err error
}

// perValue is the memory of a value without its bytes.
const perValue = 16

func (m *measurement) add(what string, values ...string) {
	for _, value := range values {
		m.value(what, value, MaxString)
	}
}

func (m *measurement) value(what, value string, allowed int) {
	m.bytes += perValue + len(value)
	if m.err == nil && len(value) > allowed {
		limit := LimitString
		if allowed == MaxVar {
			limit = LimitVars
		}
		m.err = &LimitError{limit, fmt.Sprintf("a %s of group %q has %d bytes, at most %d are allowed", what, m.group, len(value), allowed)}
	}
}

func (m *measurement) values(what string, values map[string]string, allowed int) {
	for name, value := range values {
		m.value("name of a "+what, name, MaxString)
		m.value(what, value, allowed)
	}
}

func (m *measurement) settings(settings GroupSettings) {
	m.add("setting", settings.Template, settings.InstanceType)
	m.add("subnet", settings.Subnets...)
	m.add("load balancer", settings.LoadBalancers...)
	for _, candidate := range settings.Candidates {
		m.add("value of a candidate", candidate.Name, candidate.InstanceType, candidate.Market)
	}
	m.values("var", settings.Vars, MaxVar)
	m.values("label", settings.Node.Labels, MaxString)
	for _, taint := range settings.Node.Taints {
		m.add("taint", taint.Key, taint.Value, taint.Effect)
	}
	if m.err == nil && len(settings.Vars) > MaxVars {
		m.err = &LimitError{LimitVars, fmt.Sprintf("group %q has %d vars, at most %d are allowed", m.group, len(settings.Vars), MaxVars)}
	}
}
