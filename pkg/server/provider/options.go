// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/config/jsonc"
)

// Registry has a function by the name of each provider. It reads the options of
// the provider, shard.infra.options in the configuration, and reports members of
// the wrong name or type. Options are the rest of the provider's part in the
// configuration; package registry lists the providers that a server has.
type Registry map[string]func(*jsonc.Object) Options

// Options are the options of one provider.
type Options interface {
	// Validate returns every rule that the options at path break. Subnets are
	// those of the shard.
	Validate(path *field.Path, subnets sets.Set[string]) field.ErrorList
	// ValidateArgs returns every rule that the arguments of a template or group
	// break, as far as it is known before strings in them are rendered.
	ValidateArgs(path *field.Path, args map[string]any) field.ErrorList
	// Catalogue returns the instance types, never nil.
	Catalogue() Catalogue
	// ImmutableFields returns the options at path that need a restart to change.
	ImmutableFields(path *field.Path) []ImmutableField
	// NewProvider returns the provider for a shard. The options have been
	// validated.
	NewProvider(shard Shard, callContext CallContextFunc) (Provider, error)
}

// Shard is the shard that a provider works for.
type Shard struct {
	ClusterID string
	ID        string
	Region    string
	Zone      string
}

// CallContextFunc returns the context of one call that changes something outside
// of the server. It is done at the latest when this server no longer leads.
type CallContextFunc = func(context.Context) (context.Context, context.CancelFunc)

// ImmutableField is a value that a server has for as long as it runs.
type ImmutableField struct {
	Path  *field.Path
	Value string
}

// AgentOptions are implemented by the options of a provider whose instances may run an
// agent (docs/server.md#agents).
type AgentOptions interface {
	// RunsAgent reports whether every instance runs an agent. Then an instance counts
	// as running when its agent has registered and reported.
	RunsAgent() bool
}

// RunsAgent reports whether the instances of a provider run an agent. Options that do not
// implement AgentOptions are of a provider whose instances run none.
func RunsAgent(o Options) bool {
	agents, ok := o.(AgentOptions)
	return ok && agents.RunsAgent()
}

// CheckPrefix is the prefix of the cluster, the tenant and the group of the instances that
// nstance-admin provider check creates (docs/providers.md#check-a-provider). No server and no
// operator can have such a name, because no identifier contains the separator: a provider that
// lists the instances of one cluster and shard never lists those of a server and of a check
// together.
const CheckPrefix = "check" + identifier.Separator

// ValidateID returns nil if value is an identifier, or one after CheckPrefix, and otherwise an
// error with the rule that it violates. Providers validate the names of clusters, tenants and
// groups with it, which configurations and operators may not have with the prefix.
func ValidateID(value string) error {
	return identifier.Validate(strings.TrimPrefix(value, CheckPrefix))
}
