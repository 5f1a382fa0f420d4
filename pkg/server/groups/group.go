// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package groups holds the groups of a shard: the static ones of the
// configuration, the dynamic ones that operators make, and the rules by which
// the two become one.
package groups

import (
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// Group is a group with everything merged into it: template, configuration and
// what operators stored. Nobody changes it.
type Group struct {
	Key      instance.GroupKey
	Template string
	// Kind is the template's, the prefix of instance ids.
	Kind string
	// Size is how many managed instances are wanted.
	Size int32
	// RemoveFirst are ids that go first when there are more than Size, as the
	// operator sent them. Whether there are such instances is not looked at here.
	RemoveFirst  []string `json:",omitempty"`
	InstanceType string
	// SubnetPools are pool ids in the order in which they are tried.
	SubnetPools []string
	// Vars are the template's, overlaid with the group's.
	Vars map[string]string
	// Static is true for a group that the configuration names.
	Static bool
	// Arch is the template's architecture.
	Arch string
	// Args are the provider's arguments: those of the defaults, the template and
	// the group, merged, not rendered.
	Args map[string]any
	// Userdata is the template's or else the default, not rendered.
	Userdata config.Userdata
	// Files are those of the defaults and the template, for agents.
	Files map[string]config.File
	// DrainTimeout is how long instances may take to drain. Zero means that they
	// go at once.
	DrainTimeout time.Duration
	// RuntimeConfigHash is a digest of what agents can be sent while an instance
	// runs: Vars and Files.
	RuntimeConfigHash string
	// InfraConfigHash is a digest of what takes another instance to change: Args,
	// InstanceType, SubnetPools, Userdata, Kind and Arch.
	InfraConfigHash string
	// ETag is a digest of the fields above: it differs when one of them does, also
	// when RemoveFirst alone does. Then the group has to be looked at as well.
	ETag string
	// Type is what the catalogue says of InstanceType.
	Type instance.Type `json:"-"`
}

// Change is what an operator asks of a group. Size always replaces: the wire
// cannot tell a size of 0 from none (wire contract), so a change of anything else
// has to repeat the size, and one that does not scales to zero. RemoveFirst
// belongs to the size, and so it always replaces too. The other fields leave the
// group as it is when they are empty, and Vars are added key by key. Args are
// refused, see validate.
type Change struct {
	Template     string
	Size         int32
	RemoveFirst  []string
	InstanceType string
	SubnetPools  []string
	Vars         map[string]string
	Args         map[string]string
}
