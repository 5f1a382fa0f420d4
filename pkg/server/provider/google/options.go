// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// Name is the name of the provider in the configuration.
const Name = "google"

const (
	// defaultEndpoint is the URL of the Compute Engine API.
	defaultEndpoint = "https://compute.googleapis.com/compute/v1"
	// scope is the scope of the server's tokens. The roles of its service account limit it.
	scope = "https://www.googleapis.com/auth/compute"
	// maxDrainingTimeout is the longest draining timeout of a backend service
	// (https://cloud.google.com/load-balancing/docs/enabling-connection-draining).
	maxDrainingTimeout = time.Hour
)

// Options configure the provider.
type Options struct {
	provider.CommonOptions // InstanceTypes are machine types

	// Project is the id of the project.
	Project string
	// Endpoint is the URL of the API. Empty means the public API of Compute Engine.
	Endpoint string
	// Machine has the default arguments of virtual machines.
	Machine map[string]any
	// Subnets maps subnets of the shard to subnetworks.
	Subnets map[string]Subnet
	// DrainingTimeout is how long detached endpoints may have connections.
	DrainingTimeout time.Duration
	// IdentityKeysURL is the address of the keys with which Google signs the identity of machines.
	// Empty means the public address.
	IdentityKeysURL string

	identityKeys identityKeys
}

// Subnet says where the virtual machines of a subnet are connected.
type Subnet struct {
	// Subnetwork is the name of a subnetwork in the region of the shard.
	Subnetwork string
	// Project is the host project of a shared VPC, or empty.
	Project string
	// StackType says which addresses virtual machines get, one of stackTypes, or empty for IPv4.
	StackType string
}

// ipv6Only is the stack type of virtual machines without IPv4 addresses.
const ipv6Only = "IPV6_ONLY"

// stackTypes are the stack types of network interfaces
// (https://cloud.google.com/compute/docs/reference/rest/v1/instances).
var stackTypes = []string{"IPV4_ONLY", "IPV4_IPV6", ipv6Only}

var (
	_ provider.Options            = (*Options)(nil)
	_ provider.AgentOptions       = (*Options)(nil)
	_ provider.PlaceOptions       = (*Options)(nil)
	_ provider.AttestationOptions = (*Options)(nil)
)

// ReadOptions reads the options of the provider.
func ReadOptions(o *jsonc.Object) provider.Options {
	defer o.Finish()
	options := &Options{
		CommonOptions:   provider.ReadCommonOptions(o, provider.Catalogue{}),
		Project:         o.String("project"),
		Endpoint:        o.String("endpoint"),
		Machine:         o.AnyMap("machine"),
		DrainingTimeout: o.Duration("draining_timeout", 0),
		Subnets:         map[string]Subnet{},
		IdentityKeysURL: o.String(argIdentityKeys),
	}
	options.ReadSourceOption(o)
	options.ReadReserveOption(o)
	options.ReadAttestationOption(o)
	o.Object("subnets").Each(func(name string, o *jsonc.Object) {
		options.Subnets[name] = Subnet{Subnetwork: o.String("subnetwork"), Project: o.String("project"), StackType: o.String("stack_type")}
	})
	return options
}

var (
	// projects matches ids of projects. Old ids begin with a domain.
	projects = regexp.MustCompile(`^([a-z][a-z0-9.-]*[a-z0-9]:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$`)
	// names matches names of resources (https://cloud.google.com/compute/docs/naming-resources).
	names = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
)

const (
	nameRule    = "must be a name of at most 63 lower case letters, digits and hyphens that begins with a letter"
	projectRule = "must be the id of a project, which is not its number"
)

// Validate returns every rule that the options break.
func (o *Options) Validate(path *field.Path, subnets sets.Set[string]) field.ErrorList {
	errs := provider.ValidateName(path.Child("project"), o.Project, projects, projectRule)
	if o.Endpoint != "" {
		address, err := url.Parse(o.Endpoint)
		if err != nil || address.Scheme != "https" && address.Scheme != "http" || address.Host == "" || address.User != nil || address.RawQuery != "" {
			errs = append(errs, field.Invalid(path.Child("endpoint"), o.Endpoint, "must be an address such as "+defaultEndpoint))
		}
	}
	if o.DrainingTimeout > maxDrainingTimeout {
		errs = append(errs, field.Invalid(path.Child("draining_timeout"), o.DrainingTimeout.String(), "must be at most "+maxDrainingTimeout.String()))
	}
	errs = append(errs, o.validateAttestation(path)...)
	errs = append(errs, o.ValidateReserve(path)...)
	errs = append(errs, o.ValidateArgs(path.Child("machine"), o.Machine)...)
	errs = append(errs, provider.ValidateSubnets(path.Child("subnets"), o.Subnets, subnets, "must name the subnetwork of this subnet", validateSubnet)...)
	return append(errs, o.ValidateTypes(path.Child("instance_types"), func(path *field.Path, t provider.InstanceType) field.ErrorList {
		return provider.ValidateName(path, t.Name, names, nameRule)
	})...)
}

func validateSubnet(path *field.Path, subnet Subnet) field.ErrorList {
	errs := provider.ValidateName(path.Child("subnetwork"), subnet.Subnetwork, names, nameRule)
	if subnet.Project != "" {
		errs = append(errs, provider.ValidateName(path.Child("project"), subnet.Project, projects, projectRule)...)
	}
	if subnet.StackType != "" && !slices.Contains(stackTypes, subnet.StackType) {
		errs = append(errs, field.NotSupported(path.Child("stack_type"), subnet.StackType, stackTypes))
	}
	return errs
}

// endpoint returns the URL of the API.
func (o *Options) endpoint() string { return cmp.Or(o.Endpoint, defaultEndpoint) }

// ImmutableFields returns the options that need a restart to change. Instance types and
// quotas can change at any time, because each Spec contains its type.
func (o *Options) ImmutableFields(path *field.Path) []provider.ImmutableField {
	return []provider.ImmutableField{
		{Path: path.Child("project"), Value: o.Project},
		{Path: path.Child("endpoint"), Value: o.Endpoint},
		{Path: path.Child("draining_timeout"), Value: o.DrainingTimeout.String()},
		o.ImmutableReserve(path),
		// fmt prints maps sorted by key.
		{Path: path.Child("machine"), Value: fmt.Sprint(o.Machine)},
		provider.ImmutableSubnets(path.Child("subnets"), o.Subnets, func(subnet Subnet) string {
			return fmt.Sprintf("subnetwork %q, project %q, stack type %q", subnet.Subnetwork, subnet.Project, subnet.StackType)
		}),
	}
}

// NewProvider returns the provider for a shard.
func (o *Options) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	api, err := NewAPI(o, shard)
	if err != nil {
		return nil, err
	}
	return &Provider{cloud.New(api, o.engine(shard, callContext)), newEndpointGroups(api)}, nil
}

// engine returns the options of the engine of a shard.
func (o *Options) engine(shard provider.Shard, callContext provider.CallContextFunc) cloud.Options {
	return cloud.Options{
		CallContext: callContext, ExpectedNode: expectedNode(shard),
		Market: func(spec provider.Spec) string { return o.Market(spec.Args) },
	}
}

// ValidateZone requires a zone of the region
// (https://cloud.google.com/compute/docs/regions-zones#identifying_a_region_or_zone).
func (*Options) ValidateZone(path *field.Path, region, zone string) field.ErrorList {
	if !strings.HasPrefix(zone, region+"-") || len(zone) == len(region)+1 {
		return field.ErrorList{field.Invalid(path, zone, fmt.Sprintf("must be a zone of region %s, such as %s-b", region, region))}
	}
	return nil
}
