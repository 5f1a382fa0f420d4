// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
)

// Registry has a function for each provider, by the provider's name. The function reads the
// options of the provider, shard.infra.options in the configuration, and reports members of
// the wrong name or type. Package registry lists the providers that a server has.
type Registry map[string]func(*jsonc.Object) Options

// Options configure a provider.
type Options interface {
	// Validate returns every rule that the options at path break, given the names of the
	// shard's subnets.
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

// Shard identifies the shard of a provider, and its place in the cloud.
type Shard struct {
	ClusterID string
	ID        string
	Region    string
	Zone      string
}

// CallContextFunc returns the context of one call that changes something outside
// of the server. The context ends at the latest when this server no longer leads.
type CallContextFunc = func(context.Context) (context.Context, context.CancelFunc)

// ImmutableField is a value that a server keeps as long as it runs. A configuration with
// another value is rejected.
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

// RunsAgent reports whether the instances of a provider run an agent. They run no agent if
// the options do not implement AgentOptions.
func RunsAgent(o Options) bool {
	agents, ok := o.(AgentOptions)
	return ok && agents.RunsAgent()
}

// SourceOptions are implemented by the options of a provider that reports the addresses from
// which its instances connect.
type SourceOptions interface {
	// ChecksSource reports whether an agent must register from an address of its instance.
	ChecksSource() bool
}

// ChecksSource reports whether an agent must register from an address that the provider reports
// for its instance (docs/server.md#agents). It need not if the options do not implement
// SourceOptions.
func ChecksSource(o Options) bool {
	source, ok := o.(SourceOptions)
	return ok && source.ChecksSource()
}

// UserdataOptions are implemented by the options of a provider that limits userdata.
type UserdataOptions interface {
	// CheckUserdata returns the rule that rendered userdata breaks, "must …" without a part of it.
	CheckUserdata(userdata []byte) error
}

// PlaceOptions are implemented by the options of a provider whose regions have zones of certain
// names.
type PlaceOptions interface {
	// ValidateZone returns every rule that the zone at path breaks.
	ValidateZone(path *field.Path, region, zone string) field.ErrorList
}

// SubnetOptions are implemented by the options of a provider whose subnets have names of a certain
// form, and no options of their own, in which a mistake would be reported.
type SubnetOptions interface {
	// ValidateSubnet returns every rule that the name of a subnet at path breaks.
	ValidateSubnet(path *field.Path, subnet string) field.ErrorList
}

// AttestationOptions are implemented by the options of a provider whose cloud signs the identity of
// a machine (docs/server.md#signed-identity).
type AttestationOptions interface {
	// RequiresAttestation reports whether an agent must register with the signed identity of its
	// machine.
	RequiresAttestation() bool
	// VerifyIdentity returns an error unless the cloud has signed that the identity is the
	// identity of the instance with this provider id, and is for this audience, if it signs
	// audiences. The error wraps ErrNotVerified if it cannot be known at present.
	VerifyIdentity(ctx context.Context, providerID string, identity []byte, audience string) error
}

// ErrNotVerified means that a signed identity could not be verified: another attempt may succeed.
var ErrNotVerified = errors.New("the signed identity of the machine could not be verified")

// RequiredAttestation returns the options if agents must register with the signed identity of
// their machine, and nil otherwise.
func RequiredAttestation(o Options) AttestationOptions {
	if attestation, ok := o.(AttestationOptions); ok && attestation.RequiresAttestation() {
		return attestation
	}
	return nil
}

// CommonOptions are embedded in the options of the providers of virtual machines and
// containers.
type CommonOptions struct {
	// Agent is true if each instance runs an agent, for which the server waits.
	Agent bool
	// CheckSource is true if an agent must register from an address of its instance.
	CheckSource bool
	// Attestation is AttestationRequired or empty.
	Attestation string
	// AddressReserve is how many free addresses of a subnet are left to others, such as load
	// balancers and Pods.
	AddressReserve int32
	// InstanceTypes are the built-in and the configured types, with their quotas.
	InstanceTypes Catalogue
}

// ReadCommonOptions reads agent, instance_types and quota. The configured types replace
// built-in types of the same name.
func ReadCommonOptions(o *jsonc.Object, builtIn Catalogue) CommonOptions {
	options := CommonOptions{Agent: o.Bool("agent", true), InstanceTypes: builtIn}
	ReadInstanceTypes(o.Object("instance_types"), options.InstanceTypes)
	ReadQuota(o.Object("quota"), options.InstanceTypes)
	return options
}

// ReadSourceOption reads check_source_address, which only providers have that report the
// addresses of machines.
func (o *CommonOptions) ReadSourceOption(object *jsonc.Object) {
	o.CheckSource = object.Bool("check_source_address", true)
}

// AttestationRequired is the value of the option attestation if agents must register with the signed
// identity of their machine.
const AttestationRequired = "required"

// The number of addresses in a reserve. The default is the need of a load balancer of AWS, 8, and some
// more (https://docs.aws.amazon.com/elasticloadbalancing/latest/application/application-load-balancers.html).
const (
	optionReserve  = "address_reserve"
	defaultReserve = 10
	maxReserve     = 1 << 16
)

// ReadReserveOption reads address_reserve, which only providers have whose cloud counts the free
// addresses of a subnet.
func (o *CommonOptions) ReadReserveOption(object *jsonc.Object) {
	o.AddressReserve = ptr.Deref(object.Int32(optionReserve), defaultReserve)
}

// ValidateReserve reports a reserve that no subnet can have.
func (o *CommonOptions) ValidateReserve(path *field.Path) field.ErrorList {
	if o.AddressReserve >= 0 && o.AddressReserve <= maxReserve {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child(optionReserve), o.AddressReserve, fmt.Sprintf("must be a number from 0 to %d", maxReserve))}
}

// ImmutableReserve returns the reserve as an ImmutableField.
func (o *CommonOptions) ImmutableReserve(path *field.Path) ImmutableField {
	return ImmutableField{Path: path.Child(optionReserve), Value: fmt.Sprint(o.AddressReserve)}
}

// ReadAttestationOption reads attestation, which only providers have whose cloud signs identities.
func (o *CommonOptions) ReadAttestationOption(object *jsonc.Object) {
	o.Attestation = object.String("attestation")
}

// ValidateAttestation reports another value of attestation.
func (o *CommonOptions) ValidateAttestation(path *field.Path) field.ErrorList {
	if o.Attestation == "" || o.Attestation == AttestationRequired {
		return nil
	}
	return field.ErrorList{field.NotSupported(path.Child("attestation"), o.Attestation, []string{AttestationRequired})}
}

// RequiresAttestation reports whether agents must register with the signed identity of their
// machine.
func (o *CommonOptions) RequiresAttestation() bool { return o.Attestation == AttestationRequired }

// ChecksSource reports whether an agent must register from an address of its instance.
func (o *CommonOptions) ChecksSource() bool { return o.CheckSource }

// Catalogue returns the instance types.
func (o *CommonOptions) Catalogue() Catalogue { return o.InstanceTypes }

// RunsAgent reports whether each instance runs an agent.
func (o *CommonOptions) RunsAgent() bool { return o.Agent }

// ValidateTypes returns every rule that the instance types at path break. It requires at
// least one type, and calls check for the rules of the provider.
func (o *CommonOptions) ValidateTypes(path *field.Path, check func(path *field.Path, t InstanceType) field.ErrorList) field.ErrorList {
	errs := o.InstanceTypes.Validate(path)
	if len(o.InstanceTypes) == 0 {
		errs = append(errs, field.Required(path, "must have at least one instance type"))
	}
	for _, name := range slices.Sorted(maps.Keys(o.InstanceTypes)) {
		errs = append(errs, check(path.Child(name), o.InstanceTypes[name])...)
	}
	return errs
}

// ValidateSubnets returns every rule that the configured subnets at path break. It reports
// subnets that the shard does not have, and calls check for the rules of the provider.
// Unless missing is empty, it requires each subnet of the shard with this message.
func ValidateSubnets[T any](
	path *field.Path, configured map[string]T, ofShard sets.Set[string], missing string, check func(path *field.Path, subnet T) field.ErrorList,
) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		path := path.Child(name)
		if !ofShard.Has(name) {
			errs = append(errs, field.Invalid(path, name, "unknown subnet, known are "+validation.Keys(ofShard)))
		}
		errs = append(errs, check(path, configured[name])...)
	}
	for _, name := range sets.List(ofShard) {
		if _, found := configured[name]; !found && missing != "" {
			errs = append(errs, field.Required(path.Child(name), missing))
		}
	}
	return errs
}

// ImmutableSubnets returns the configured subnets at path as one ImmutableField. describe
// returns a text that differs if a subnet differs.
func ImmutableSubnets[T any](path *field.Path, configured map[string]T, describe func(subnet T) string) ImmutableField {
	var subnets []string
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		subnets = append(subnets, name+": "+describe(configured[name]))
	}
	return ImmutableField{Path: path, Value: strings.Join(subnets, "; ")}
}

// ValidateName reports a value that is empty, or does not match pattern. The rule describes
// the pattern for users.
func ValidateName(path *field.Path, value string, pattern *regexp.Regexp, rule string) field.ErrorList {
	errs := validation.Required(path, value)
	if len(errs) == 0 && !pattern.MatchString(value) {
		errs = field.ErrorList{field.Invalid(path, value, rule)}
	}
	return errs
}

// CheckPrefix is the prefix of the cluster, the tenant and the group of the instances that
// nstance-admin provider check creates (docs/providers.md#check-a-provider). No server and no
// operator can have such a name, because no identifier contains the separator. A provider
// lists the instances of one cluster and shard, and so never mixes the instances of a server
// and of a check.
const CheckPrefix = "check" + identifier.Separator

// ValidateID returns an error if value is neither an identifier nor CheckPrefix and an
// identifier. Providers validate the names of clusters, tenants and groups with it.
// Configurations and operators reject names with the prefix.
func ValidateID(value string) error {
	return identifier.Validate(strings.TrimPrefix(value, CheckPrefix))
}
