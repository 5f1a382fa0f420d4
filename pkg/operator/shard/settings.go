// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// GroupSettings is the configuration of a group apart from its size. An empty field leaves the
// choice to the server.
type GroupSettings struct {
	// Template is the name of the server's template.
	Template string
	// InstanceType overrides the instance type of the template.
	InstanceType string
	// Subnets are the ids of subnet pools, in the order in which they are tried.
	Subnets []string
	// Vars are merged over the vars of the template.
	Vars map[string]string
	// LoadBalancers are keys of load balancers of the server.
	LoadBalancers []string
	// DrainTimeoutSeconds is how long an instance may take to drain.
	DrainTimeoutSeconds int32
	// Node has the settings for the kubelets of new instances.
	Node NodeSettings
	// Candidates list the instance types and markets of instances, the best first. Without candidates InstanceType counts.
	Candidates []Candidate
	// ReturnAfterSeconds is for how long a better candidate must have been free of rejections before
	// an instance is replaced by an instance of it, 0 for never.
	ReturnAfterSeconds int32
}

// NodeSettings are labels, taints and the maximum number of Pods of the Nodes of a group. The zero
// value leaves them to the server.
type NodeSettings struct {
	Labels map[string]string
	// Taints have each key and effect once.
	Taints []Taint
	// MaxPods is 0 if it is left to the kubelet.
	MaxPods int32
}

// Equal reports whether two settings are equal. A nil list or map equals an empty one.
func (n NodeSettings) Equal(other NodeSettings) bool {
	return maps.Equal(n.Labels, other.Labels) && slices.Equal(n.Taints, other.Taints) && n.MaxPods == other.MaxPods
}

// IsZero reports whether nothing is set.
func (n NodeSettings) IsZero() bool { return n.Equal(NodeSettings{}) }

// nodeSettingsOf returns the settings of a message, which may be nil. The map is shared with it.
func nodeSettingsOf(message *nstancev1.NodeSettings) NodeSettings {
	settings := NodeSettings{Labels: message.GetLabels(), MaxPods: message.GetMaxPods()}
	for _, taint := range message.GetTaints() {
		settings.Taints = append(settings.Taints, Taint{Key: taint.GetKey(), Value: taint.GetValue(), Effect: taint.GetEffect()})
	}
	return settings
}

// message returns nil if nothing is set.
func (n NodeSettings) message() *nstancev1.NodeSettings {
	if n.IsZero() {
		return nil
	}
	message := &nstancev1.NodeSettings{Labels: n.Labels, MaxPods: n.MaxPods}
	for _, taint := range n.Taints {
		message.Taints = append(message.Taints, &nstancev1.NodeTaint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect})
	}
	return message
}

// Equal reports whether two settings are equal. A nil list or map equals an empty one.
func (s GroupSettings) Equal(other GroupSettings) bool {
	return s.Template == other.Template &&
		s.InstanceType == other.InstanceType &&
		slices.Equal(s.Subnets, other.Subnets) &&
		maps.Equal(s.Vars, other.Vars) &&
		slices.Equal(s.LoadBalancers, other.LoadBalancers) &&
		s.DrainTimeoutSeconds == other.DrainTimeoutSeconds &&
		s.Node.Equal(other.Node) &&
		EqualCandidates(s.Candidates, other.Candidates) &&
		s.ReturnAfterSeconds == other.ReturnAfterSeconds
}

// settingsMessage is implemented by the messages that have the fields of GroupSettings:
// GroupConfig, GroupStatus and GroupSettings.
type settingsMessage interface {
	GetTemplate() string
	GetInstanceType() string
	GetSubnets() []string
	GetVars() map[string]string
	GetLoadBalancers() []string
	GetDrainTimeoutSeconds() int32
	GetNodeSettings() *nstancev1.NodeSettings
	GetCandidates() []*nstancev1.Candidate
	GetReturnAfterSeconds() int32
}

// SettingsOf returns the settings of a message. Slices and maps are shared with it.
func SettingsOf(message settingsMessage) GroupSettings {
	return GroupSettings{
		Template:     message.GetTemplate(),
		InstanceType: message.GetInstanceType(),
		Subnets:      message.GetSubnets(),
		Vars:         message.GetVars(),

		LoadBalancers:       message.GetLoadBalancers(),
		DrainTimeoutSeconds: message.GetDrainTimeoutSeconds(),

		Node:               nodeSettingsOf(message.GetNodeSettings()),
		Candidates:         candidatesOf(message.GetCandidates()),
		ReturnAfterSeconds: message.GetReturnAfterSeconds(),
	}
}

// Config returns the message that sends the settings to a shard, without a size.
func (s GroupSettings) Config() *nstancev1.GroupConfig {
	return &nstancev1.GroupConfig{
		Template:     s.Template,
		InstanceType: s.InstanceType,
		Subnets:      s.Subnets,
		Vars:         s.Vars,

		LoadBalancers:       s.LoadBalancers,
		DrainTimeoutSeconds: s.DrainTimeoutSeconds,

		NodeSettings:       s.Node.message(),
		Candidates:         candidateMessages(s.Candidates),
		ReturnAfterSeconds: s.ReturnAfterSeconds,
	}
}

// firstKnown is the lowest number of the settings that servers need not know
// (docs/protocol.md#extensions).
const firstKnown = 1020

// Supported returns the settings that the server of g knows, and the JSON names of the others that
// are set. Such a server would ignore them at each call, and never report them.
func (g Group) Supported(s GroupSettings) (known GroupSettings, unsupported []string) {
	config := s.Config()
	message := config.ProtoReflect()
	message.Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if number := field.Number(); number >= firstKnown && int32(number) > g.KnownSettings {
			unsupported = append(unsupported, field.JSONName())
			message.Clear(field)
		}
		return true
	})
	slices.Sort(unsupported)
	return SettingsOf(config), unsupported
}
