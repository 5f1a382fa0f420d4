// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"context"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

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
